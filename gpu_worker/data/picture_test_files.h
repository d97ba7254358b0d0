// JPEG, PNG and RecordIO bytes for tests. PNG and RecordIO are written from the definitions of the
// formats and independent of the readers; JPEG by libjpeg.
#ifndef CAPSTAN_GPU_WORKER_DATA_PICTURE_TEST_FILES_H_
#define CAPSTAN_GPU_WORKER_DATA_PICTURE_TEST_FILES_H_

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
// jpeglib.h needs what is above.
#include <jpeglib.h>

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gpu_worker/data/idx_test_files.h"

namespace capstan::data {

inline absl::Span<const uint8_t> BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

struct PngTestFile {
  uint32_t width = 1, height = 1;
  int bits = 8;
  int color = 2;            // 0 grey, 2 color, 3 palette, 4 grey and alpha, 6 color and alpha
  bool interlaced = false;  // `rows` has the rows of Adam7's passes
  std::string palette, transparency;
  std::vector<std::string> rows;  // without the filter byte
};

inline std::string PngChunk(const std::string& kind, const std::string& data) {
  const std::string body = kind + data;
  const uLong crc = crc32(0, reinterpret_cast<const Bytef*>(body.data()), body.size());
  return BigEndian32(static_cast<uint32_t>(data.size())) + body +
         BigEndian32(static_cast<uint32_t>(crc));
}

inline std::string Png(const PngTestFile& file) {
  std::string header = BigEndian32(file.width) + BigEndian32(file.height);
  for (const int byte : {file.bits, file.color, 0, 0, file.interlaced ? 1 : 0}) {
    header += static_cast<char>(byte);
  }
  std::string raw;
  for (const std::string& row : file.rows) raw += '\0' + row;
  std::string packed(compressBound(raw.size()), '\0');
  uLongf size = packed.size();
  compress(reinterpret_cast<Bytef*>(packed.data()), &size,
           reinterpret_cast<const Bytef*>(raw.data()), raw.size());
  packed.resize(size);
  std::string png = "\x89PNG\r\n\x1a\n" + PngChunk("IHDR", header);
  if (!file.palette.empty()) png += PngChunk("PLTE", file.palette);
  if (!file.transparency.empty()) png += PngChunk("tRNS", file.transparency);
  return png + PngChunk("IDAT", packed) + PngChunk("IEND", "");
}

// A picture of [height, width, channels] as an 8 bit PNG.
inline std::string PngOf(uint32_t height, uint32_t width, int channels, const std::string& bytes) {
  PngTestFile file;
  file.width = width;
  file.height = height;
  file.color = channels == 3 ? 2 : 0;
  const size_t row = size_t{width} * static_cast<size_t>(channels);
  for (size_t y = 0; y < height; ++y) file.rows.push_back(bytes.substr(y * row, row));
  return Png(file);
}

struct JpegTestFile {
  unsigned width = 1, height = 1;
  int channels = 3;  // 1 grey, 3 red, green, blue, 4 inks
  J_COLOR_SPACE stored = JCS_YCbCr;
  int quality = 100;
  int across = 1, down = 1;  // pixels of the picture for one of color
  bool progressive = false;
  bool arithmetic = false;
  bool separate = false;  // a scan for each of three components
  bool adobe = true;      // of inks: whether it has Adobe's marker
  std::string bytes;      // [height, width, channels]
};

inline std::string Jpeg(const JpegTestFile& file) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;  // libjpeg's own handler ends the program
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &out, &size);
  info.image_width = file.width;
  info.image_height = file.height;
  info.input_components = file.channels;
  info.in_color_space = file.channels == 1   ? JCS_GRAYSCALE
                        : file.channels == 3 ? JCS_RGB
                                             : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_colorspace(&info, file.channels == 1 ? JCS_GRAYSCALE : file.stored);
  if (file.channels == 4) info.write_Adobe_marker = file.adobe ? TRUE : FALSE;
  jpeg_set_quality(&info, file.quality, TRUE);
  info.dct_method = JDCT_ISLOW;
  if (file.channels == 3) {
    info.comp_info[0].h_samp_factor = file.across;
    info.comp_info[0].v_samp_factor = file.down;
  }
  info.arith_code = file.arithmetic ? TRUE : FALSE;
  const jpeg_scan_info scans[] = {
      {1, {0}, 0, 63, 0, 0}, {1, {1}, 0, 63, 0, 0}, {1, {2}, 0, 63, 0, 0}};
  if (file.separate) {
    info.scan_info = scans;
    info.num_scans = 3;
  }
  if (file.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = reinterpret_cast<JSAMPROW>(const_cast<char*>(file.bytes.data())) +
                   size_t{info.next_scanline} * file.width * static_cast<unsigned>(file.channels);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string result(reinterpret_cast<char*>(out), size);
  std::free(out);
  return result;
}

inline std::string Little32(uint32_t value) {
  const std::string big = BigEndian32(value);
  return {big.rbegin(), big.rend()};
}

inline std::string FloatBytes(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return Little32(bits);
}

// The data of a record. With `labels` they follow the header.
inline std::string ImageData(float label, const std::string& image,
                             const std::vector<float>& labels = {}) {
  std::string data =
      Little32(static_cast<uint32_t>(labels.size())) + FloatBytes(label) + std::string(16, '\7');
  for (const float more : labels) data += FloatBytes(more);
  return data + image;
}

inline constexpr char kMagicBytes[] = "\x0a\x23\xd7\xce";

inline std::string RecordPart(uint32_t kind, const std::string& data) {
  const auto size = static_cast<uint32_t>(data.size());
  return kMagicBytes + Little32(kind << 29 | size) + data + std::string((4 - size % 4) % 4, '\0');
}

// A record, cut at each magic number that it has at a multiple of 4.
inline std::string RecordBytes(const std::string& data) {
  std::string out;
  size_t begin = 0;
  for (size_t i = 0; i + 4 <= data.size(); i += 4) {
    if (data.compare(i, 4, kMagicBytes) != 0) continue;
    out += RecordPart(begin == 0 ? 1 : 2, data.substr(begin, i - begin));
    begin = i + 4;
  }
  return out + RecordPart(begin == 0 ? 0 : 3, data.substr(begin));
}

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_PICTURE_TEST_FILES_H_
