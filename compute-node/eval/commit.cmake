# cmake -DSOURCE=folder -DHEADER=file -P commit.cmake: writes the commit of the sources into a header, with "+" if files
# were changed since; "unknown" outside of git. A header that says so already is left alone, so that nothing is compiled
# anew.
set(commit "unknown")
if(EXISTS "${SOURCE}/.git")
  execute_process(COMMAND git -C "${SOURCE}" rev-parse HEAD
    RESULT_VARIABLE failed OUTPUT_VARIABLE name OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed)
    execute_process(COMMAND git -C "${SOURCE}" --no-optional-locks status --porcelain
      RESULT_VARIABLE failed OUTPUT_VARIABLE changes ERROR_QUIET)
  endif()
  if(NOT failed)
    set(commit "${name}")
    if(changes)
      string(APPEND commit "+")
    endif()
  endif()
endif()
set(text "#pragma once\n#define CAIRN_COMMIT \"${commit}\"\n")
set(old "")
if(EXISTS "${HEADER}")
  file(READ "${HEADER}" old)
endif()
if(NOT old STREQUAL text)
  file(WRITE "${HEADER}" "${text}")
endif()
