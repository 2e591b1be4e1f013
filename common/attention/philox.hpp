#pragma once
// Random numbers by position. Kernels include this too: no header of the host.
#include "common/attention/host_device.hpp"

namespace flashladder {

/// Four random words.
struct Words {
  unsigned int w[4];  ///< 32 bits each.
};

/// Philox4x32-10: ten rounds of multiplications mix a position with a key. The same position gives the same
/// words, whoever asks, and in whatever order. (Salmon, Moraes, Dror and Shaw, Parallel random numbers: as
/// easy as 1, 2, 3, 2011.)
FLASHLADDER_HOST_DEVICE constexpr Words philox(Words at, unsigned int key0, unsigned int key1) {
  for (int round = 0; round < 10; ++round) {
    const unsigned long long a = 0xd2511f53ull * at.w[0], b = 0xcd9e8d57ull * at.w[2];
    at = {{static_cast<unsigned int>(b >> 32) ^ at.w[1] ^ key0, static_cast<unsigned int>(b),
           static_cast<unsigned int>(a >> 32) ^ at.w[3] ^ key1, static_cast<unsigned int>(a)}};
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return at;
}

/// The random bytes that say which of 16 keys dropout leaves out, keys 16 * block ... 16 * block + 15, for
/// row `row` of query head `head` of all.
FLASHLADDER_HOST_DEVICE constexpr Words dropout_bytes(unsigned long long seed, long long head, int row,
                                                      int block) {
  return philox({{static_cast<unsigned int>(block), static_cast<unsigned int>(row),
                  static_cast<unsigned int>(head), static_cast<unsigned int>(head >> 32)}},
                static_cast<unsigned int>(seed), static_cast<unsigned int>(seed >> 32));
}

/// The one of them for key `key` of the 16: from 0 to 255, and the key stays where it is below
/// Dropout::kept(). Keys 2 x, 2 x + 1, 2 x + 8 and 2 x + 9, which a lane of tensor cores has together, are
/// byte x of the four words.
FLASHLADDER_HOST_DEVICE constexpr int dropout_byte(const Words& bytes, int key) {
  return static_cast<int>(bytes.w[key % 2 + key / 8 * 2] >> (key % 8 / 2 * 8) & 255);
}

}  // namespace flashladder
