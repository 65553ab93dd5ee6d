# Helpers so that each folder's CMakeLists.txt is a list of its sources and of the folders that it may use.

add_library(cairn_warnings INTERFACE)
target_compile_options(cairn_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wnon-virtual-dtor -Wold-style-cast -Werror)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(cairn_warnings INTERFACE -Wthread-safety)
  # Sources that a unity build joins share one anonymous namespace, whose names a parameter may have. GCC, which tells
  # the two apart, and dev, which joins nothing, keep the warning for all sources.
  if(CMAKE_UNITY_BUILD)
    target_compile_options(cairn_warnings INTERFACE -Wno-shadow)
  endif()
endif()
# GCC 12 reports false positives of these inside libstdc++ when it inlines at -O2 and above.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(cairn_warnings INTERFACE -Wno-restrict -Wno-maybe-uninitialized)
endif()
# GCC takes a source that a unity build includes for a header, and warns where its classes use its own anonymous
# namespace, which is right in a source. dev, source by source, keeps the warning for what is in headers.
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(cairn_warnings INTERFACE -Wno-subobject-linkage)
endif()

if(CAIRN_FAIL_POINTS)
  add_compile_definitions(CAIRN_FAIL_POINTS)
endif()
if(CAIRN_SANITIZE STREQUAL "address")
  # AddressSanitizer sees what null and object-size see; vptr is about casts to derived classes, of which there are
  # none; what reads bytes from outside is fuzzed with alignment. Without the four everything compiles in two thirds of
  # the time.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize=null,object-size,vptr,alignment
    -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
  add_compile_definitions(CAIRN_DEEP_CHECKS)
elseif(CAIRN_SANITIZE STREQUAL "thread")
  # Not below -O1: the members of std::string would be copies of ours, and librocksdb, which is not instrumented, would
  # call them; ThreadSanitizer then reports races inside RocksDB that are none.
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
  add_compile_definitions(CAIRN_THREAD_SANITIZED)
endif()

# With CAIRN_READ_ONCE the headers of libraries that most sources include are read once for all sources that are
# compiled with -O0, and once for the others: a fifth of a sanitizer build's time is saved. Other builds see whether a
# source includes what it uses.
function(cairn_read_once name optimisation)
  if(NOT CAIRN_READ_ONCE)
    return()
  endif()
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "CAIRN_READ_ONCE needs clang: set it to OFF for ${CMAKE_CXX_COMPILER_ID}")
  endif()
  set(read cairn_read_once${optimisation})
  # All alike; and without a time, for which the compiler cache would take each build's for another one.
  set(options -pthread -fPIE -Xclang -fno-pch-timestamp)
  if(NOT TARGET ${read})
    set(source ${CMAKE_BINARY_DIR}/generated/${read}.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "")
    add_library(${read} OBJECT ${source})
    target_link_libraries(${read} PRIVATE absl::statusor fmt::fmt spdlog::spdlog GTest::gtest)
    set(headers <algorithm> <array> <atomic> <chrono> <filesystem> <fstream> <functional> <map> <memory> <mutex>
      <optional> <random> <set> <span> <sstream> <string> <string_view> <thread> <unordered_map> <utility> <variant>
      <vector>
      <absl/status/statusor.h> <fmt/format.h> <spdlog/spdlog.h> <gtest/gtest.h>)
    if(CAIRN_DAEMONS)
      target_link_libraries(${read} PRIVATE gRPC::grpc++)
      list(APPEND headers <grpcpp/grpcpp.h>)
    endif()
    target_precompile_headers(${read} PRIVATE ${headers})
    # It names the files that it is of by their whole paths: the compiler cache must not give it to another checkout.
    set_target_properties(${read} PROPERTIES CXX_COMPILER_LAUNCHER "")
    target_compile_options(${read} PRIVATE ${options} ${optimisation})
  endif()
  target_precompile_headers(${name} REUSE_FROM ${read})
  target_compile_options(${name} PRIVATE ${options} ${optimisation})
endfunction()

# cairn_library(NAME SOURCES file... DEPS target... [READ_EACH]): one library a folder; READ_EACH as for tests.
function(cairn_library name)
  cmake_parse_arguments(ARG "READ_EACH" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE cairn_warnings)
  if(NOT ARG_READ_EACH)
    cairn_read_once(${name} "")
  endif()
endfunction()

# cairn_optimise_sanitized(NAME): more optimisation in sanitizer builds, for libraries whose loops are most of what
# the tests above them do.
function(cairn_optimise_sanitized name)
  if(CAIRN_SANITIZE)
    target_compile_options(${name} PRIVATE -O2)
  endif()
endfunction()

# cairn_binary(NAME SOURCES file... DEPS target...): a program. cairn_programs builds those that measure nothing.
add_custom_target(cairn_programs)
function(cairn_binary name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} cairn_warnings)
  target_compile_definitions(${name} PRIVATE CAIRN_VERSION="${PROJECT_VERSION}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
  if(NOT name MATCHES "_bench$|-eval$")
    add_dependencies(cairn_programs ${name})
  endif()
endfunction()

# cairn_test(NAME SOURCES file... DEPS target... [LABELS label...] [OPTIMISED] [READ_EACH] [LONG]): a GoogleTest
# binary that ctest runs as one test; OPTIMISED in sanitizer builds too, where its own loops are long. What needs other
# instructions than the rest, as the kernels do, has READ_EACH. LONG tests begin before the others, so that at the end
# no processor waits for one of them.
function(cairn_test name)
  cmake_parse_arguments(ARG "OPTIMISED;READ_EACH;LONG" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gtest_main cairn_warnings)
  # The tests are a third of all code to compile; what they test is optimised as ever.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(ARG_OPTIMISED)
    cairn_optimise_sanitized(${name})
  endif()
  if(ARG_OPTIMISED OR CAIRN_SANITIZE STREQUAL "thread")
    set(optimisation "")
  else()
    set(optimisation -O0)
  endif()
  if(NOT ARG_READ_EACH)
    cairn_read_once(${name} "${optimisation}")
  endif()
  if(CAIRN_SANITIZE)
    target_compile_definitions(${name} PRIVATE CAIRN_SANITIZED)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(CAIRN_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 4")
  endif()
  # cairn_tests_unit and so on: all tests with a label.
  foreach(label ${ARG_LABELS})
    if(NOT TARGET cairn_tests_${label})
      add_custom_target(cairn_tests_${label})
    endif()
    add_dependencies(cairn_tests_${label} ${name})
  endforeach()
  # 77 is the status of a test that could not run here; ctest then reports it as skipped. Polling as in the daemons:
  # common/rpc/grpc_runtime.h.
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77
    ENVIRONMENT GRPC_POLL_STRATEGY=poll
    CAIRN_COMMAND $<TARGET_FILE:${name}>)
  if(ARG_LONG)
    set_tests_properties(${name} PROPERTIES COST 1)
  endif()
endfunction()

# cairn_test_with(NAME SUFFIX variable=value... [ARGS argument...] [LABELS label...]): a test once more, as NAME_SUFFIX,
# in another environment.
function(cairn_test_with name suffix)
  cmake_parse_arguments(ARG "" "" "ARGS;LABELS" ${ARGN})
  get_test_property(${name} LABELS labels)
  if(ARG_LABELS)
    set(labels "${ARG_LABELS}")
  endif()
  get_test_property(${name} TIMEOUT timeout)
  get_test_property(${name} CAIRN_COMMAND command)
  get_test_property(${name} COST cost)
  add_test(NAME ${name}_${suffix} COMMAND ${CMAKE_COMMAND} -E env ${ARG_UNPARSED_ARGUMENTS} ${command} ${ARG_ARGS})
  set_tests_properties(${name}_${suffix} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout}
    ENVIRONMENT GRPC_POLL_STRATEGY=poll)
  if(cost)
    set_tests_properties(${name}_${suffix} PROPERTIES COST ${cost})
  endif()
endfunction()
