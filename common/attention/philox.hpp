#pragma once
// Random numbers by position. Kernels include this too: no header of the host.
#include "common/attention/host_device.hpp"

namespace flashladder {

/// Four random words.
struct Words {
  unsigned int w[4];  ///< 32 bits each.
};

/// Philox4x32: rounds of multiplications mix a position with a key. The same position gives the same words,
/// whoever asks, and in whatever order. From 7 rounds on it passes the tests of randomness that there are.
/// (Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3, 2011.)
template <int rounds>
FLASHLADDER_HOST_DEVICE constexpr Words philox(Words at, unsigned int key0, unsigned int key1) {
  for (int round = 0; round < rounds; ++round) {
    const unsigned long long a = 0xd2511f53ull * at.w[0], b = 0xcd9e8d57ull * at.w[2];
    at = {{static_cast<unsigned int>(b >> 32) ^ at.w[1] ^ key0, static_cast<unsigned int>(b),
           static_cast<unsigned int>(a >> 32) ^ at.w[3] ^ key1, static_cast<unsigned int>(a)}};
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return at;
}

/// The 16 random bytes that say which P dropout leaves out of those that one lane of tensor cores has of 16
/// rows and 32 keys: the row and the one 8 before or behind it, and of each 8 keys the key and its
/// neighbour.
/// @param head  of all batch entries
/// @param row   any of the two rows
/// @param key   any of the eight keys
FLASHLADDER_HOST_DEVICE constexpr Words dropout_bytes(unsigned long long seed, long long head, int row,
                                                      int key) {
  return philox<7>({{static_cast<unsigned int>(key / 32 * 4 + key % 8 / 2),
                     static_cast<unsigned int>(row / 16 * 8 + row % 8), static_cast<unsigned int>(head),
                     static_cast<unsigned int>(head >> 32)}},
                   static_cast<unsigned int>(seed), static_cast<unsigned int>(seed >> 32));
}

/// The one of a row and a key: from 0 to 255. P stays where it is below Dropout::kept().
FLASHLADDER_HOST_DEVICE constexpr int dropout_byte(const Words& bytes, int row, int key) {
  return static_cast<int>(bytes.w[key % 32 / 8] >> (key % 2 * 8 + row % 16 / 8 * 16) & 255);
}

}  // namespace flashladder
