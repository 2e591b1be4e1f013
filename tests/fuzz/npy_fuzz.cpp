// Feeds the .npy and .npz readers whatever libFuzzer makes up. Run it as
//   npy_fuzz -max_len=4096 -malloc_limit_mb=64 -max_total_time=180 <a folder for new inputs>
//   tests/fuzz/corpus
// The limit finds memory taken on the word of a header: 4096 bytes cannot inflate to more than 5 MB.
#include "tests/fuzz/npy_fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read_any_bytes(std::as_bytes(std::span(data, size)));
  return 0;
}
