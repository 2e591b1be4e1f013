# Headers of the device in a C++ file, for kernels that are compiled at run time.

# flashladder_device_headers(OUT FILE...): the files, relative to the root, and all that they include, but what is CUDA's,
# and what only the emulator has of common/simt.
function(flashladder_device_headers out)
  set(found "")
  set(left common/simt/simt.hpp common/simt/std.hpp common/simt/device.hpp ${ARGN})
  while(left)
    list(POP_FRONT left path)
    if(path IN_LIST found)
      continue()
    endif()
    if(NOT EXISTS ${PROJECT_SOURCE_DIR}/${path})
      message(FATAL_ERROR "${path}, which a header of the device includes, is not there")
    endif()
    list(APPEND found ${path})
    file(STRINGS ${PROJECT_SOURCE_DIR}/${path} includes REGEX "^ *# *include \"")
    list(TRANSFORM includes REPLACE "^[^\"]*\"([^\"]*)\".*" "\\1")
    list(FILTER includes EXCLUDE REGEX "^common/simt/")
    list(APPEND left ${includes})
  endwhile()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# flashladder_embed_headers(FILE HEADER...): writes the C++ file of common/kernel/run_time_headers.hpp.
function(flashladder_embed_headers file)
  set(entries "")
  foreach(header IN LISTS ARGN)
    file(READ ${PROJECT_SOURCE_DIR}/${header} text)
    string(APPEND entries "      {\"${header}\", R\"of_the_device(${text})of_the_device\"},\n")
  endforeach()
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARGN})
  set(new "// Generated from headers of the device.
#include \"common/kernel/run_time_headers.hpp\"

namespace flashladder {

std::span<const DeviceHeader> device_headers() {
  static const DeviceHeader all[] = {
${entries}  };
  return all;
}

}  // namespace flashladder
")
  set(old "")
  if(EXISTS ${file})
    file(READ ${file} old)
  endif()
  if(NOT old STREQUAL new)
    file(WRITE ${file} "${new}")
  endif()
endfunction()
