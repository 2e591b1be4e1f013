# flashladder_mutant_tests: the stages' kernels with one mistake each, and the test that every one is rejected.
# NN_name.patch is such a mistake in stages/NN_*/attention.cu, or in the kernel.hpp beside it, which apply.cmake puts in
# the place of the line that includes it; of a variant in its policy.hpp or the kernels that it has. It is applied to a copy
# when the build runs, and what comes out is compiled as C++, as the stage itself is for the emulator, in the namespace
# mutant_NN_name.
#
# Where FLASHLADDER_TURN is set, those of a part of the stages only: "2/3" are those of the second, the fifth and so on.
find_program(FLASHLADDER_PATCH patch DOC "Applies the patches of tests/mutants")
if(NOT FLASHLADDER_PATCH)
  message(STATUS "Left out: the mutants of the kernels (there is no program 'patch')")
  return()
endif()

set(mutants_dir ${CMAKE_CURRENT_SOURCE_DIR}/mutants)
set(mutants_made ${CMAKE_CURRENT_BINARY_DIR}/mutants)
file(GLOB patches CONFIGURE_DEPENDS ${mutants_dir}/[0-9]*_*.patch)
list(SORT patches)
set(turn "")
if(FLASHLADDER_TURN)
  if(NOT FLASHLADDER_TURN MATCHES "^([1-9][0-9]*)/([1-9][0-9]*)$" OR CMAKE_MATCH_1 GREATER CMAKE_MATCH_2)
    message(FATAL_ERROR "FLASHLADDER_TURN is ${FLASHLADDER_TURN}: give a part such as 2/3, the second of three")
  endif()
  set(turn ${CMAKE_MATCH_1})
  set(turns ${CMAKE_MATCH_2})
endif()
set(numbers "")  # of the stages so far
set(mutant_sources "")
set(mutant_units "")
set(mutant_declarations "")
set(mutant_entries "")
foreach(patch IN LISTS patches)
  get_filename_component(name ${patch} NAME_WE)
  string(SUBSTRING ${name} 0 2 number)
  list(APPEND numbers ${number})
  list(REMOVE_DUPLICATES numbers)
  list(LENGTH numbers count)
  if(turn)
    math(EXPR is_other "(${count} - ${turn}) % ${turns}")
    if(is_other)
      continue()
    endif()
  endif()
  file(GLOB original ${PROJECT_SOURCE_DIR}/stages/${number}_*/attention.cu)
  if(NOT original)
    message(FATAL_ERROR "tests/mutants/${name}.patch: there is no stage ${number} of kernels")
  endif()
  get_filename_component(folder ${original} DIRECTORY)
  # Empty where there is none.
  file(GLOB apart CONFIGURE_DEPENDS ${folder}/kernel.hpp ${folder}/policy.hpp ${folder}/launch.hpp ${folder}/variants.hpp)
  # Stages 70 and up have the kernels of 70 and 71, and a mutant may be wrong in those: the text has them in place.
  file(STRINGS ${original} of_others REGEX "^#include \"stages/7[01]_[a-z_]*/kernel.hpp\"")
  if(of_others)
    file(GLOB kernels ${PROJECT_SOURCE_DIR}/stages/7[01]_*/kernel.hpp)
    list(APPEND apart ${kernels})
  endif()
  set(mutant ${mutants_made}/${name}.cu)
  add_custom_command(OUTPUT ${mutant}
    COMMAND ${CMAKE_COMMAND} -DPATCH_PROGRAM=${FLASHLADDER_PATCH} -DPATCH=${patch} -DORIGINAL=${original}
            -DMUTANT=${mutant} -P ${mutants_dir}/apply.cmake
    DEPENDS ${patch} ${original} ${apart} ${mutants_dir}/apply.cmake COMMENT "Making the mutant ${name}" VERBATIM)
  set_source_files_properties(${mutant} PROPERTIES HEADER_FILE_ONLY ON LANGUAGE CXX)
  list(APPEND mutant_sources ${mutant})
  # Those of a stage are compiled together: half of the time of each would go to the same headers. But one program text
  # can have the kernels of stages 70 and 71 once only.
  set(unit ${number})
  if(of_others)
    set(unit ${name})
  elseif(number GREATER 80)  # four of these take a minute: no core is to wait for another
    list(APPEND of_${number} ${name})
    list(LENGTH of_${number} so_many)
    math(EXPR four "${so_many} / 4")
    set(unit ${number}_${four})
  endif()
  list(APPEND mutant_units ${unit})
  string(APPEND mutants_of_${unit}
         "#define stage_${number} mutant_${name}\n#include \"mutants/${name}.cu\"\n#undef stage_${number}\n")
  string(APPEND mutant_declarations "namespace flashladder::mutant_${name} { extern const Stage stage; }\n")
  file(STRINGS ${patch} most_d REGEX "^Seen at d = [0-9]+ only\\.$")  # below its sentence
  string(REGEX REPLACE "[^0-9]" "" most_d "${most_d}")
  if(NOT most_d)
    set(most_d 96)
  endif()
  string(APPEND mutant_entries "    {\"${name}\", &mutant_${name}::stage, ${most_d}},\n")
endforeach()
list(REMOVE_DUPLICATES mutant_units)
foreach(unit IN LISTS mutant_units)
  set(source ${mutants_made}/stage_${unit}.cpp)
  file(CONFIGURE OUTPUT ${source} @ONLY
       CONTENT "// Generated from the patches of tests/mutants/.\n${mutants_of_${unit}}")
  set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS -O1)  # they run on small problems only
  list(APPEND mutant_sources ${source})
endforeach()
file(CONFIGURE OUTPUT ${mutants_made}/mutants.cpp @ONLY CONTENT
"// Generated from the patches of tests/mutants/.
#include \"mutants/mutants.hpp\"

@mutant_declarations@
namespace flashladder {

std::span<const Mutant> mutants() {
  static const Mutant all[] = {
@mutant_entries@  };
  return all;
}

std::string_view turn_of_mutants() {
  return \"${FLASHLADDER_TURN}\";
}

}  // namespace flashladder
")

flashladder_test_program(flashladder_mutant_tests
  cases.cpp mutants/mutants_test.cpp ${mutants_made}/mutants.cpp ${mutant_sources})
target_include_directories(flashladder_mutant_tests PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
target_link_libraries(flashladder_mutant_tests PRIVATE flashladder_stages flashladder_simt)
flashladder_test(mutants_sample quick COMMAND flashladder_mutant_tests "[mutant]" -w NoAssertions)
flashladder_test(mutants long COMMAND flashladder_mutant_tests "[every-mutant]" -w NoAssertions)
set_tests_properties(mutants PROPERTIES COST 1000)  # a long one of those that take one core is to begin first
