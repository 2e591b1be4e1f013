# Each dependency is used where it is installed, else fetched at a pinned version, else the part that needs it
# is left out with one line that says so, while the rest builds.
include(FetchContent)
set(FETCHCONTENT_QUIET ON)

# flashladder_dependency(NAME <package> TARGET <target> FOR <what needs it> PACKAGE <how to install it>
#                        REPOSITORY <url> TAG <tag> [CONFIG] [CACHE <var>=<value>...])
# Sets <package>_AVAILABLE. FETCHCONTENT_SOURCE_DIR_<PACKAGE> names a local copy, as ever with FetchContent.
function(flashladder_dependency)
  cmake_parse_arguments(arg "" "NAME;TARGET;FOR;PACKAGE;REPOSITORY;TAG" "CACHE" ${ARGN})
  string(TOUPPER ${arg_NAME} upper)
  set(${arg_NAME}_AVAILABLE TRUE PARENT_SCOPE)

  if(NOT FETCHCONTENT_SOURCE_DIR_${upper})
    find_package(${arg_NAME} QUIET GLOBAL)
    if(TARGET ${arg_TARGET})
      return()
    endif()
    # FetchContent stops the whole configuration when the network is not there, so ask first, once.
    set(reachable FALSE)
    if(FLASHLADDER_FETCH AND NOT DEFINED FLASHLADDER_REACHED_${upper})
      find_program(GIT_EXECUTABLE git)
      if(GIT_EXECUTABLE)
        message(STATUS "${arg_NAME} is not installed: looking for ${arg_TAG} at ${arg_REPOSITORY}")
        set(ENV{GIT_TERMINAL_PROMPT} 0)
        execute_process(COMMAND ${GIT_EXECUTABLE} ls-remote --exit-code ${arg_REPOSITORY} refs/tags/${arg_TAG}
                        TIMEOUT 15 RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
        if(failed EQUAL 0)
          set(FLASHLADDER_REACHED_${upper} TRUE CACHE INTERNAL "")
        endif()
      endif()
    endif()
    if(NOT FLASHLADDER_FETCH OR NOT FLASHLADDER_REACHED_${upper})
      message(STATUS "Left out: ${arg_FOR} (needs ${arg_NAME}: install ${arg_PACKAGE}, or let CMake fetch it)")
      set(${arg_NAME}_AVAILABLE FALSE PARENT_SCOPE)
      return()
    endif()
  endif()

  foreach(pair IN LISTS arg_CACHE)
    string(REGEX MATCH "^([^=]+)=(.*)$" matched ${pair})
    set(${CMAKE_MATCH_1} ${CMAKE_MATCH_2} CACHE INTERNAL "")
  endforeach()
  FetchContent_Declare(${arg_NAME} GIT_REPOSITORY ${arg_REPOSITORY} GIT_TAG ${arg_TAG} GIT_SHALLOW TRUE SYSTEM
                       EXCLUDE_FROM_ALL)
  FetchContent_MakeAvailable(${arg_NAME})
endfunction()
