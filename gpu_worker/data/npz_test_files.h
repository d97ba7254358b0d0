// Bytes of .npy arrays and zip archives for tests, written from the definitions of the formats and
// independent of the readers.
#ifndef CAPSTAN_GPU_WORKER_DATA_NPZ_TEST_FILES_H_
#define CAPSTAN_GPU_WORKER_DATA_NPZ_TEST_FILES_H_

#include <zlib.h>

#include <cstdint>
#include <string>
#include <vector>

namespace capstan::data {

// The lowest `size` bytes of a number, little-endian.
inline std::string LittleEndian(uint64_t value, int size) {
  std::string bytes;
  for (int i = 0; i < size; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

// The memory of numbers on a little-endian machine.
template <typename T>
std::string BytesOf(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

// As numpy.save writes it: the header is filled with blanks to a multiple of 64.
inline std::string NpyOfHeader(std::string dict, const std::string& numbers, int major = 1) {
  const size_t length_bytes = major == 1 ? 2 : 4;
  while ((8 + length_bytes + dict.size() + 1) % 64 != 0) dict += ' ';
  dict += '\n';
  return std::string("\x93NUMPY") + static_cast<char>(major) + '\0' +
         LittleEndian(dict.size(), static_cast<int>(length_bytes)) + dict + numbers;
}

inline std::string Npy(const std::string& descr, const std::string& shape,
                       const std::string& numbers, int major = 1) {
  return NpyOfHeader("{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }",
                     numbers, major);
}

struct ZipTestMember {
  std::string name;
  std::string bytes;
  bool deflate = false;
  int flags = 0;
  int method = -1;         // -1: stored or deflated
  bool zip64 = false;      // sizes in the zip64 field of the local header, as numpy.savez has them
  bool zip64_too = false;  // and of the directory
  int64_t claim = -1;      // unpacked bytes that both headers claim; -1: the true ones
};

inline std::string Deflated(const std::string& bytes) {
  z_stream stream = {};
  deflateInit2(&stream, 6, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, bytes.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// `end64`: with a zip64 end record, to which the end record refers.
inline std::string Zip(const std::vector<ZipTestMember>& members, const std::string& comment = "",
                       bool end64 = false) {
  std::string file, directory;
  for (const ZipTestMember& member : members) {
    const std::string packed = member.deflate ? Deflated(member.bytes) : member.bytes;
    const uint64_t size =
        member.claim < 0 ? member.bytes.size() : static_cast<uint64_t>(member.claim);
    const std::string crc =
        LittleEndian(crc32(0, reinterpret_cast<const Bytef*>(member.bytes.data()),
                           static_cast<uInt>(member.bytes.size())),
                     4);
    const int method = member.method >= 0 ? member.method : member.deflate ? 8 : 0;
    const std::string common = LittleEndian(static_cast<uint64_t>(member.flags), 2) +
                               LittleEndian(static_cast<uint64_t>(method), 2) +
                               std::string(4, '\x21') + crc;
    const auto sizes = [&](bool in_64) {
      return in_64 ? std::string(8, '\xff')
                   : LittleEndian(packed.size(), 4) + LittleEndian(size, 4);
    };
    const std::string extra = LittleEndian(1, 2) + LittleEndian(16, 2) + LittleEndian(size, 8) +
                              LittleEndian(packed.size(), 8);
    directory += "PK\x01\x02" + LittleEndian(45, 2) + LittleEndian(45, 2) + common +
                 sizes(member.zip64_too) + LittleEndian(member.name.size(), 2) +
                 LittleEndian(member.zip64_too ? extra.size() : 0, 2) + std::string(10, '\0') +
                 LittleEndian(file.size(), 4) + member.name + (member.zip64_too ? extra : "");
    file.append("PK\x03\x04").append(LittleEndian(45, 2)).append(common);
    file.append(sizes(member.zip64)).append(LittleEndian(member.name.size(), 2));
    file.append(LittleEndian(member.zip64 ? extra.size() : 0, 2)).append(member.name);
    file.append(member.zip64 ? extra : "").append(packed);
  }
  const size_t offset = file.size();
  file += directory;
  if (end64) {
    const size_t record = file.size();
    file += "PK\x06\x06" + LittleEndian(44, 8) + LittleEndian(45, 2) + LittleEndian(45, 2) +
            std::string(8, '\0') + LittleEndian(members.size(), 8) +
            LittleEndian(members.size(), 8) + LittleEndian(directory.size(), 8) +
            LittleEndian(offset, 8);
    file += "PK\x06\x07" + LittleEndian(0, 4) + LittleEndian(record, 8) + LittleEndian(1, 4);
  }
  file += "PK\x05\x06" + std::string(4, '\0') +
          (end64 ? std::string(12, '\xff')
                 : LittleEndian(members.size(), 2) + LittleEndian(members.size(), 2) +
                       LittleEndian(directory.size(), 4) + LittleEndian(offset, 4));
  return file + LittleEndian(comment.size(), 2) + comment;
}

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_NPZ_TEST_FILES_H_
