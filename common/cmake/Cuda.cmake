# Sets FLASHLADDER_WITH_CUDA where the GPU stages can be compiled for a GPU too. Without nvcc they run on the emulator.
set(FLASHLADDER_WITH_CUDA FALSE)
set(FLASHLADDER_WITH_HOPPER FALSE)  # the stages that need it are compiled for a GPU too
set(FLASHLADDER_LEAST_ARCHITECTURE 80)  # the oldest that has what the kernels take: cp.async, bf16 on tensor cores
if(FLASHLADDER_CUDA AND NOT FLASHLADDER_SANITIZE AND NOT FLASHLADDER_FUZZ)
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)  # installed, but not on the PATH
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(nobody_chose FALSE)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
      set(nobody_chose TRUE)
      # Code for the oldest and for the GPUs of the measurements, and the oldest's PTX, which the driver compiles for any
      # other at the first start.
      set(CMAKE_CUDA_ARCHITECTURES ${FLASHLADDER_LEAST_ARCHITECTURE} 90-real)
    endif()
    enable_language(CUDA)
    if(nobody_chose AND CMAKE_CUDA_ARCHITECTURES_NATIVE)
      # Code for this machine's GPUs alone, those of them that nvcc knows: it takes half of the time, or less.
      execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-code OUTPUT_VARIABLE known_to_nvcc)
      set(own "")
      foreach(architecture IN LISTS CMAKE_CUDA_ARCHITECTURES_NATIVE)  # as 90-real
        string(REPLACE "-real" "" number ${architecture})
        if(number GREATER_EQUAL FLASHLADDER_LEAST_ARCHITECTURE AND known_to_nvcc MATCHES "sm_${number}\n")
          list(APPEND own ${architecture})
        endif()
      endforeach()
      if(own)
        set(CMAKE_CUDA_ARCHITECTURES ${own})
      endif()
    endif()
    find_package(CUDAToolkit REQUIRED)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 12 knows C++20
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
      list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
    endif()
    set(FLASHLADDER_WITH_CUDA TRUE)
    set(architectures ${CMAKE_CUDA_ARCHITECTURES})
    list(TRANSFORM architectures REPLACE "^native$" "${CMAKE_CUDA_ARCHITECTURES_NATIVE}")
    if(architectures MATCHES "(^|;)(90a?(-real|-virtual)?|all|all-major)(;|$)")
      set(FLASHLADDER_WITH_HOPPER TRUE)
    endif()
    set(compiled_for ${architectures})
    # Code for 90a is for a Hopper alone. Where there are other architectures, only the stages that need it have it.
    list(FILTER architectures EXCLUDE REGEX "^90a")
    if(architectures AND NOT CMAKE_CUDA_ARCHITECTURES STREQUAL "native")
      set(CMAKE_CUDA_ARCHITECTURES ${architectures})
      set(compiled_for ${architectures})
    endif()
    # Of a stage with a table of tiles only the rows of GPUs that can run it are compiled (common/kernel/host.hpp): which
    # these are, machine code alone says. PTX is for all: then the list is empty.
    set(FLASHLADDER_CODE_FOR "")
    if(compiled_for MATCHES "^[0-9]+[a-z]?-real(;[0-9]+[a-z]?-real)*$")
      string(REGEX REPLACE "[a-z]?-real" "" FLASHLADDER_CODE_FOR "${compiled_for}")
    endif()
  else()
    message(STATUS "Left out: the GPU stages on a GPU (no nvcc: install the CUDA Toolkit); they run on the emulator")
  endif()
endif()
