# flashladder_options(TARGET): warnings are errors in our own code (never in a dependency's headers, nor in a
# project that includes this one), and the sanitizers where FLASHLADDER_SANITIZE asks for them. nvcc hands the host's
# compiler pointers to members in parentheses, of which -Wparentheses warns.
function(flashladder_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic>
                                           $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-parentheses>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)  # g++ 12 sees overlaps in std::string (its bug 105651)
  endif()
  if(PROJECT_IS_TOP_LEVEL)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>
                                             "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings>")
  endif()
  if(FLASHLADDER_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=address,undefined -fno-sanitize-recover=all
                                             -fno-omit-frame-pointer)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # Instrumented code hides from g++ what is initialised, in the standard library too (its bug 105562).
      target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
      # g++ 13 puts 64-byte vectors at unaligned places of the stack that finds uses after return (its bug 110027).
      target_compile_options(${target} PRIVATE --param=asan-use-after-return=0)
    endif()
    target_link_options(${target} PUBLIC -fsanitize=address,undefined)
  endif()
  if(FLASHLADDER_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# flashladder_compile_quickly(TARGET): for what runs no longer for it, as the program around the kernels and the tests.
function(flashladder_compile_quickly target)
  target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
endfunction()
