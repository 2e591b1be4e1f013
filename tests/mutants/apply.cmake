# Writes MUTANT: ORIGINAL with PATCH applied by PATCH_PROGRAM. A patch that only applies nearly is one that nobody
# has looked at since its stage changed, so none of its context may differ (--fuzz=0).
file(READ ${ORIGINAL} text)
# A kernel, or the stage's own policy, what launches it and how it puts variants together, that is in a file of its own,
# from its first #include on, in the place of the line that includes it.
get_filename_component(folder ${ORIGINAL} DIRECTORY)
get_filename_component(own ${folder} NAME)
string(REGEX MATCHALL "#include \"stages/([a-z0-9_]+/kernel|${own}/(policy|launch|variants))\\.hpp\"\n" includes "${text}")
if(EXISTS ${folder}/kernel.hpp)
  list(FILTER includes EXCLUDE REGEX policy)  # which the kernel includes itself
endif()
foreach(include IN LISTS includes)
  string(REGEX REPLACE ".*\"(.*)\".*" "\\1" header "${include}")
  file(READ ${folder}/../../${header} inside)
  string(FIND "${inside}" "\n#include " first)
  if(first EQUAL -1)
    message(FATAL_ERROR "${header} includes nothing")
  endif()
  math(EXPR first "${first} + 1")
  string(SUBSTRING "${inside}" ${first} -1 inside)
  string(REPLACE "${include}" "${inside}" text "${text}")
endforeach()
set(original ${MUTANT}.original)
file(WRITE ${original} "${text}")
execute_process(
  COMMAND ${PATCH_PROGRAM} --batch --forward --fuzz=0 --output=${MUTANT} --reject-file=- ${original} ${PATCH}
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT status EQUAL 0)
  file(REMOVE ${MUTANT})
  message(FATAL_ERROR "${PATCH} no longer applies to ${ORIGINAL}. Make the same mistake in a copy of the stage as it "
                      "is now, and put 'diff -u' of the two below the patch's sentence. It said:\n${output}")
endif()
# They run with d up to 96, but for those that are seen at a larger one, and in fp16 where they take 16-bit numbers: what
# else a stage is compiled for would only take longer to compile. (From 52 on it is the kernels with 128 columns that take 96.)
file(READ ${MUTANT} text)
file(STRINGS ${PATCH} all_d REGEX "^Seen at d = [0-9]+ only\\.$")
if(NOT all_d)
  string(FIND "${text}" "for_head_dim<T, 64, 128" takes_96)
  string(REGEX REPLACE "(for_head_dim<[A-Za-z0-9, ]*), 128[0-9, ]*>" "\\1>" text "${text}")
  if(NOT takes_96 EQUAL -1)
    string(REPLACE "for_head_dim<T, 64>" "for_head_dim<T, 64, 128>" text "${text}")
  endif()
elseif(all_d MATCHES 136)  # where blocks come in clusters
  string(REPLACE "for_head_dim<T, 64, 96, 128, 192, 256>" "for_head_dim<T, 64, 96, 192>" text "${text}")
endif()
string(REPLACE "for_half_dtype(f.problem.dtype, " "[](auto body) { body(f16()); }(" text "${text}")
set(dims "row.d <= 96")
if(text MATCHES "tile\\.share|namespace flashladder::stage_71")
  set(dims "row.d != 128")  # at 256 two warps share their keys
endif()
string(REPLACE "for_row<table>("
               "for_row<table, [](const Row& row) { return ${dims} && row.dtype == Dtype::fp16; }>(" text "${text}")
string(REGEX REPLACE "(for_(masked_)?row<stage_7[01]::table)>"
                     "\\1, [](const auto& row) { return row.d <= 96 && row.dtype == Dtype::fp16; }>" text "${text}")
if(NOT all_d)
  string(REGEX REPLACE "(for_masked_row_of<[a-z0-9_:]*, 64, 128), 256>" "\\1>" text "${text}")
endif()
string(REGEX REPLACE "for_masked_row_of<(stage_7[01]::table), ([0-9, ]*)>\\([ \n]*f\\.problem,"
                     "for_row<\\1, [](const auto& row) { return MaskedRowOf<\\2>()(row) && row.dtype == Dtype::fp16; }>(with_columns<\\2>(f.problem),"
                     text "${text}")
file(WRITE ${MUTANT} "${text}")
