#pragma once
#include <cstddef>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>

#include "common/io/npy.hpp"

namespace flashladder {

/// The arrays that the bytes of an .npz file hold, by name ("q" for the member "q.npy").
///
/// Takes what np.savez writes below 2 GiB, and what np.savez_compressed writes where the build has zlib
/// (FLASHLADDER_HAS_ZLIB). Checks the CRC-32 of each member that it reads. Unpacks no more than a member's
/// .npy header declares.
/// @param name  of the file, for errors
/// @param wanted  members to read, where not all are; the others are listed without shape and values,
/// whatever they hold Throws Error for a damaged, encrypted or otherwise packed archive, and for a member
/// that parse_npy refuses: the error then names file and member.
std::map<std::string, Array> parse_npz(std::span<const std::byte> bytes, const std::string& name,
                                       const std::set<std::string>& wanted = {});

/// The arrays in the .npz file at `path`. Throws Error as parse_npz does, and for a file that cannot be
/// read.
std::map<std::string, Array> read_npz(const std::filesystem::path& path,
                                      const std::set<std::string>& wanted = {});

}  // namespace flashladder
