#!/usr/bin/env bash
# Installs what is needed, builds, and runs the checks of the project; CONTRIBUTING.md has the table of
# the stages. Ends with ctest's summaries, that of the daemons' tests last.
# usage: [CAIRN_STAGES="lint release integration"] [CAIRN_JOBS=2] tests/run.sh [--nightly]
#   --nightly     also all that takes long; without it one fifth of that runs, in turn by commit, and not
#                 whole, whose tests asan has
#   CAIRN_TURN    which fifth, 0 to 4; default: the number of commits modulo 5
#   CAIRN_STAGES  which stages, in this order: lint release integration asan tsan tidy whole fuzz arm
#                 quality bench devices loops
#   CAIRN_JOBS    compilers at once, and half of the tests; default one for each processor
#   CAIRN_FUZZ_SECONDS  fuzz so long, all targets at once, with a new seed; default: a fixed number of
#                 inputs and a fixed seed, so that the stage repeats itself
set -Eeuo pipefail
cd "$(dirname "$0")/.."

usual_stages="lint release integration asan tsan"
long_stages="tidy whole fuzz arm quality bench devices loops"
# What runs beside the usual stages when its turn comes, and the turns' share of clang-tidy.
turns=("fuzz" "arm" "quality" "bench devices" "loops")
all_stages="$usual_stages $long_stages"
tidy_part=1/1
nightly=
jobs=${CAIRN_JOBS:-$(nproc)}
test_jobs=$((2 * jobs))  # those of daemons, and of disks, wait half of their time
logs=build/logs
mkdir -p "$logs"
rm -f "$logs"/output-*.log  # of an earlier run
# Tests whose processes are killed on purpose leave their folders behind.
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/cairn.XXXXXX")
export TMPDIR
chmod 711 "$TMPDIR"  # daemons that a test starts as another user pass through it
trap 'rm -rf "$TMPDIR" || true' EXIT  # what a test has left may still write there
times=()
skipped=

turn_of_commit() {
  local commits
  commits=$(git rev-list --count HEAD 2>/dev/null) || commits=0
  echo $((commits % ${#turns[@]}))
}

case "${1:-}" in
  "")
    turn=${CAIRN_TURN:-$(turn_of_commit)}
    if [[ ! $turn =~ ^[0-4]$ ]]; then
      echo "tests/run.sh: CAIRN_TURN is '$turn': it must be 0 to 4" >&2
      exit 2
    fi
    stages=${CAIRN_STAGES:-"$usual_stages tidy ${turns[$turn]}"}
    [[ -n ${CAIRN_STAGES:-} ]] || tidy_part=$((turn + 1))/${#turns[@]}
    ;;
  --nightly)
    stages=${CAIRN_STAGES:-$all_stages}
    nightly=yes
    export CAIRN_TEST_HISTORIES=${CAIRN_TEST_HISTORIES:-30} CAIRN_TEST_EVERY_STEP=1
    ;;
  *)
    echo "usage: tests/run.sh [--nightly]; the head of the script says what variables it looks at" >&2
    exit 2
    ;;
esac

arm_tests=(common_test kernels_test)
tsan_tests=(common_test device_test kernels_test engine_test history_test session_state_test
  cairn_session_test)
# A turn computes on the same threads whatever its policy, its heads and its numbers, whoever watches it, and
# wherever it was forked; so does a store however full it is.
tsan_filter='-Policies/*cluster*:Policies/*oracle:Policies/*streaming:Policies/*full:Policies/*random'
tsan_filter+=':EstimatePercent/*:AttentionObserverTest.*:DynaKvTest.KeepingClustersChangesNothing'
tsan_filter+=':DynaKvTest.AForkAtAnyToken*:ConversationTest.TextDoesNotDependOn*:Cases/AllHeads*'
tsan_filter+=':Formats/AllHeads*:Formats/WeightObserver*:EngineGrowthTest.*'
tsan_histories=1
export CTEST_OUTPUT_ON_FAILURE=1

# What TSan and ASan need to say where; and leaks are errors. Looking for what points into the stack of a
# function that has returned takes a quarter of the tests' time, noting all callers of each allocation
# a tenth, and keeping 256 MB from being used again, or giving them back to the system, a fifth: by night.
asan_by_day=detect_leaks=1:malloc_context_size=5:allocator_release_to_os_interval_ms=-1
asan_by_day+=:quarantine_size_mb=4:thread_local_quarantine_size_kb=256
export ASAN_OPTIONS=${ASAN_OPTIONS:-${nightly:+detect_leaks=1:detect_stack_use_after_return=1}}
export ASAN_OPTIONS=${ASAN_OPTIONS:-$asan_by_day}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-suppressions=$PWD/tests/tsan_suppressions.txt:halt_on_error=1}

# The sanitizers of these compilers cannot live with as much address randomisation as newer kernels use.
fixed_addresses=(env)
setarch -R true 2>/dev/null && fixed_addresses=(setarch -R)

# What the sanitizer builds read once may be kept by the compiler cache only if it may overlook these.
export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}

say() { printf '\n== %s\n' "$*"; }

# Runs a command with its output in a log, which is shown when the command fails.
quietly() {
  local log=$logs/$1.log
  shift
  if ! "$@" >"$log" 2>&1; then
    grep -E '(error|FAILED|warning):?|^ninja: ' "$log" | head -n 40 || true
    tail -n 40 "$log"
    echo "tests/run.sh: failed: $* (the whole output: $log)" >&2
    return 1
  fi
}

sources() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -co --exclude-standard -- '*.h' '*.cc'
  else
    find common kv-node compute-node clients tests -name '*.h' -o -name '*.cc'
  fi
}

configure() { quietly "configure-$1" cmake --preset "$1" "${@:2}"; }
build() { quietly "build-$1" cmake --build "build/$1" -j "$jobs" "${@:2}"; }

stage_lint() {
  sources | xargs -d '\n' clang-format --dry-run -Werror
  /usr/bin/python3 tests/unit/tidy_test.py --self-test
  /usr/bin/python3 tests/unit/tidy_test.py
  /usr/bin/python3 tests/unit/docs_test.py --self-test
  /usr/bin/python3 tests/unit/docs_test.py
  /usr/bin/python3 tests/unit/messages_test.py --self-test
  /usr/bin/python3 tests/unit/messages_test.py
  /usr/bin/python3 tests/unit/proto_lint_test.py --self-test
  /usr/bin/python3 tests/unit/proto_lint_test.py
  /usr/bin/python3 tests/unit/proto_pin_test.py
  /usr/bin/python3 tests/tools/make_configuration_page.py --check
  clients/bench/cairn-bench report --check
  bash -n deploy/*.sh tests/*.sh
}

# The programs, and what tests them; a turn of its own builds all that there is.
stage_release() {
  configure release
  build release --target cairn_programs cairn_tests_integration cairn_tests_shared cairn_tests_sim
}

# NAME BUILD argument...: the tests that the arguments choose; their output is kept by name.
run_ctest() {
  "${fixed_addresses[@]}" ctest --test-dir "build/$2" -j "$test_jobs" "${@:3}" | tee "$logs/ctest-$1.log"
  cp "build/$2/Testing/Temporary/LastTest.log" "$logs/output-$1.log"
}

stage_integration() { test_jobs=$((3 * jobs)) run_ctest integration release -L '^(integration|shared|sim)$'; }

stage_whole() {
  configure release
  build release
  run_ctest whole release -L '^unit$'
}

stage_quality() { run_ctest quality release -L '^quality$'; }
# cairn-bench compare asks another program for a part of its figures.
stage_bench() {
  configure release
  build release --target cairn-policy-eval
  run_ctest bench release -L '^bench$'
}
stage_devices() { run_ctest devices release -L '^devices$'; }
stage_loops() { run_ctest loops release -L '^loops$'; }

# Every unit and fault test once. Sanitizer builds make less of the program: no daemons' binaries.
stage_asan() {
  configure asan
  build asan --target cairn_tests_unit cairn_tests_fault
  run_ctest asan asan -L '^(unit|fault)$'
}

# What runs several threads of our own; all policies only at night.
stage_tsan() {
  if [[ -n $nightly ]]; then
    tsan_tests+=(baseline_session_test)
    tsan_filter='*'
    tsan_histories=$CAIRN_TEST_HISTORIES
  fi
  configure tsan
  build tsan --target "${tsan_tests[@]}"
  GTEST_FILTER=$tsan_filter CAIRN_TEST_HISTORIES=$tsan_histories "${fixed_addresses[@]}" \
    ctest --test-dir build/tsan -j "$test_jobs" -R "^($(IFS='|'; echo "${tsan_tests[*]}"))\$"
}

stage_tidy() {
  configure clang
  build clang --target cairn_generated
  /usr/bin/python3 tests/tools/check_headers.py build/clang --jobs "$jobs" --part "$tidy_part"
  /usr/bin/python3 tests/tools/run_clang_tidy.py build/clang --jobs "$jobs" --part "$tidy_part"
}

stage_fuzz() {
  configure clang
  local -A run_counts=([gguf_fuzz]=100000 [rows_fuzz]=2000000) running
  build clang --target "${!run_counts[@]}"
  local target corpus how
  for target in "${!run_counts[@]}"; do
    corpus=build/clang/corpus/$target
    if [[ -n ${CAIRN_FUZZ_SECONDS:-} ]]; then
      mkdir -p "$corpus"
      how=("-max_total_time=$CAIRN_FUZZ_SECONDS" "$corpus")
    else
      mkdir -p "$(dirname "$corpus")"
      how=("-runs=${run_counts[$target]}" -seed=1)
    fi
    quietly "fuzz-$target" build/clang/bin/"$target" "-artifact_prefix=$corpus-" "${how[@]}" &
    running[$target]=$!
  done
  for target in "${!run_counts[@]}"; do
    wait "${running[$target]}"
    echo "$target: no failure; $(grep -a '^Done' "$logs/fuzz-$target.log")"
  done
}

# The kernels for NEON, and what stands on them, under emulation. A machine without what that needs can
# do everything else.
stage_arm() {
  if [[ $(uname -m) == aarch64 ]]; then
    skipped="this machine is arm64 itself: the other stages run these tests"
  elif ! deploy/install_packages.sh tests/packages-arm.txt; then
    skipped="the packages of tests/packages-arm.txt cannot be installed (see above)"
  elif ! tests/arm_sysroot.sh; then
    skipped="the arm64 packages of tests/packages-arm-sysroot.txt cannot be had (see above)"
  fi
  if [[ -n $skipped ]]; then
    echo "SKIPPED: $skipped"
    return
  fi
  configure arm
  build arm --target "${arm_tests[@]}" model_reference_test
  ctest --test-dir build/arm -j "$test_jobs" -R "^($(IFS='|'; echo "${arm_tests[*]}"))\$"
  # Seconds for a model: one, whose matrices are of several types.
  GTEST_FILTER='*/tiny_llama_q4_k_m' ctest --test-dir build/arm -R '^model_reference_test$'
}

# The stage is never part of a condition: bash would ignore errors inside it.
run_stage() {
  local stage=$1 begin=$SECONDS
  skipped=
  say "$stage"
  trap 'echo "tests/run.sh: stage $stage failed after $((SECONDS - begin)) s" >&2' ERR
  "stage_$stage"
  trap - ERR
  times+=("$(printf '%-11s %5d s' "$stage" $((SECONDS - begin)))${skipped:+  SKIPPED: $skipped}")
}

deploy/install_packages.sh deploy/packages.txt tests/packages.txt
for stage in $stages; do
  case " $all_stages " in
    *" $stage "*) run_stage "$stage" ;;
    *) echo "tests/run.sh: no stage '$stage'; there are: $all_stages" >&2; exit 2 ;;
  esac
done

say "times"
printf '%s\n' "${times[@]}" "$(printf '%-11s %5d s' all "$SECONDS")"
say "skipped cases inside test programs"
skips='^(\[  SKIPPED \] [A-Za-z0-9_./]+|SKIPPED: .*|.* \.\.\. skipped .*)'
for run in $stages; do
  [[ ! -f $logs/output-$run.log ]] || grep -ahoE "$skips" "$logs/output-$run.log" || true
done | sort -u
for run in whole quality bench devices loops asan integration; do
  case " $stages " in *" $run "*) ;; *) continue ;; esac
  say "ctest: $run"
  sed -n '/tests passed/,$p' "$logs/ctest-$run.log"
done
