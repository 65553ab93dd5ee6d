#!/usr/bin/env bash
# From a fresh Debian 12 to generated text: installs packages, builds Cairn, starts its two daemons, lets
# the model that ships here answer questions about a text of 4,000 tokens, and stops the daemons.
# usage: deploy/quickstart.sh
#   CAIRN_STATE  where the store lies; default .cairn in the repository
#   CAIRN_JOBS   compilers at once; default one for each processor
# May be run again, also while another run is going on: that one is waited for.
set -Eeuo pipefail
cd "$(dirname "$0")/.."
root=$PWD
state=${CAIRN_STATE:-$root/.cairn}
jobs=${CAIRN_JOBS:-$(nproc)}
bin=$root/build/release/bin
model=$root/deploy/models/retrieval-3m-f16.gguf
text=$root/deploy/models/demo-4k.txt
questions=$root/deploy/models/demo-4k.questions
extent_file_bytes=$((512 << 20))

step() { printf '\n[%s] %s\n' "$1" "$2"; }
fail() {
  printf '\nquickstart failed: %s\n' "$1" >&2
  shift
  printf '  %s\n' "$@" >&2
  exit 1
}

kv_pid=""
compute_pid=""
sockets=""
# A daemon that does not end within 30 s of SIGTERM is killed; false if it had to be, or failed.
stop_daemon() {
  local pid=$1
  kill -TERM "$pid" 2>/dev/null || true
  timeout 30 tail --pid="$pid" -f /dev/null || kill -KILL "$pid" 2>/dev/null || true
  wait "$pid"
}
clean_up() {
  trap '' INT TERM  # a second Ctrl-C does not leave a daemon behind
  [[ -z $compute_pid ]] || stop_daemon "$compute_pid" 2>/dev/null || true
  [[ -z $kv_pid ]] || stop_daemon "$kv_pid" 2>/dev/null || true
  [[ -z $sockets ]] || rm -rf "$sockets"
}
trap clean_up EXIT
trap 'echo; echo "quickstart: interrupted, stopping" >&2; exit 130' INT
trap 'exit 143' TERM

# Waits until the daemon logs that it is ready: the log is followed until then, or until the daemon ends.
wait_ready() {
  local name=$1 pid=$2 log=$3
  grep -q -m1 ' ready' < <(tail --pid="$pid" -n +1 -f "$log" 2>/dev/null) && return
  tail -n 20 "$log" >&2
  fail "$name did not start; the end of its log $log is above." \
    "What is stored in $state is left as it is; with CAIRN_STATE set to another folder this begins anew."
}

mkdir -p "$state/logs" || fail "cannot make the folder $state." "Set CAIRN_STATE to one that you may write."
exec 9>"$state/lock"
if ! flock -n 9; then
  echo "Another quickstart uses $state; waiting for its end."
  flock 9
fi

step 1/5 "Debian packages"
deploy/install_packages.sh deploy/packages.txt
echo "all there"

step 2/5 "Building (the first time 5 to 10 minutes on two cores; build/release)"
build_log=$state/logs/build.log
build() {
  cmake --preset release && cmake --build build/release -j "$jobs" \
    --target cairn cairn-kv-node cairn-compute-node cairn-kv-util
}
# Ninja's [n/m] becomes a line for each tenth.
show_tenths() {
  local line told=0
  while IFS= read -r line; do
    [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]] || continue
    if ((BASH_REMATCH[2] > 10 && BASH_REMATCH[1] * 10 / BASH_REMATCH[2] > told)); then
      told=$((BASH_REMATCH[1] * 10 / BASH_REMATCH[2]))
      echo "  ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]} steps"
    fi
  done
}
if ! build 2>&1 | tee "$build_log" | show_tenths
then
  grep -E 'error|FAILED' "$build_log" | head -n 20 >&2 || tail -n 20 "$build_log" >&2
  fail "the build (whole output: $build_log)." \
    "Memory or disk short? Free some, or set CAIRN_JOBS=1, and run this again."
fi
echo "built"

step 3/5 "Starting the daemons"
# Paths of Unix sockets are short by nature, so they do not lie in the repository.
sockets=$(mktemp -d "${XDG_RUNTIME_DIR:-${TMPDIR:-/tmp}}/cairn.XXXXXX")
cat >"$state/kv-node.conf" <<CONF
data_dir: "$state/store"
socket_path: "$sockets/kv.sock"
extent_file_bytes: $extent_file_bytes
CONF
cat >"$state/compute-node.conf" <<CONF
model_path: "$model"
socket_path: "$sockets/compute.sock"
kv_socket_path: "$sockets/kv.sock"
CONF
# Emptied here, not by the daemons' shells: the last run's logs say "ready" too.
: >"$state/logs/kv-node.log"
: >"$state/logs/compute-node.log"
"$bin/cairn-kv-node" --config "$state/kv-node.conf" 2>>"$state/logs/kv-node.log" 9>&- &
kv_pid=$!
wait_ready cairn-kv-node "$kv_pid" "$state/logs/kv-node.log"
"$bin/cairn-compute-node" --config "$state/compute-node.conf" 2>>"$state/logs/compute-node.log" 9>&- &
compute_pid=$!
wait_ready cairn-compute-node "$compute_pid" "$state/logs/compute-node.log"
echo "cairn-kv-node: keys and values in $state/store"
echo "cairn-compute-node: ${model##*/}"

step 4/5 "Asking about ${text##*/}, $(wc -w <"$text") words (about 4,000 tokens), each fact stated once"
stats=$state/logs/generate.log
answers=0
summary=""
conversation=()
source_text=(--file "$text")
# The first question brings the text; the others continue the conversation, whose keys and values are
# on flash.
while IFS=$'\t' read -r question expected; do
  [[ $question == \#* ]] && continue
  printf 'Q: %s\nA:' "$question"
  if ! answer=$("$bin/cairn" generate --socket "$sockets/compute.sock" --stats --tokens 100 \
      "${source_text[@]}" "${conversation[@]}" --stop $'\n' $'\nQ: '"$question"$'\nA:' \
      </dev/null 2>"$stats" 9>&-); then
    echo
    cat "$stats" >&2
    tail -n 5 "$state/logs/compute-node.log" "$state/logs/kv-node.log" >&2
    fail "no answer; what cairn and the daemons said is above."
  fi
  echo "$answer"
  if [[ ${answer# } != "$expected" ]]; then
    fail "the model answered '${answer# }', not '$expected'." \
      "That is a bug of Cairn on this machine: please report it with $state/logs."
  fi
  answers=$((answers + 1))
  if [[ -z $summary ]]; then
    summary=$(grep '^summary: ' "$stats") || fail "cairn printed no summary (see $stats)."
    id=$(sed -n 's/^conversation=\([0-9]*\) .*/\1/p' "$stats")
    conversation=(--conversation "$id")
    source_text=()
  fi
done <"$questions"
echo "All $answers answers are right."
"$bin/cairn" sessions delete --socket "$sockets/compute.sock" "$id" 9>&- ||
  fail "the conversation could not be deleted."

step 5/5 "Stopping the daemons"
stop_daemon "$compute_pid" || fail "cairn-compute-node did not end well (log: $state/logs/compute-node.log)."
compute_pid=""
stop_daemon "$kv_pid" || fail "cairn-kv-node did not end well (log: $state/logs/kv-node.log)."
kv_pid=""
echo "done; docs/getting-started.md says how to go on with a model of your own"
# "summary: tokens_per_s=126.76 ttft_ms=9045.7 kv_flash_bytes=17997824 kv_dram_bytes=22781643 ..."
awk '{
  for (i = 2; i <= NF; ++i) { split($i, field, "="); of[field[1]] = field[2] }
  printf "first answer: after %.1f s, most of which is reading the text; then %.0f tokens a second\n",
         of["ttft_ms"] / 1000, of["tokens_per_s"]
  printf "keys and values: %.1f MiB on flash; in memory %.1f MiB, most of it buffers of fixed size\n",
         of["kv_flash_bytes"] / 1048576, of["kv_dram_bytes"] / 1048576
}' <<<"$summary"
