// How many pictures a core decodes in a second, as the reader threads of image_folder and rec do.
//
//   capstan_bench_pictures --seconds 2
//
// Each case has eight pictures of smooth waves and noise in memory: JPEG files of quality 90 with a
// color for 2 x 2 pixels, as cameras write them, and PNG files with less noise.
// Inside the clock: DecodePicture, CPU time of the thread. Not in it: reading the file. Prints a
// line of JSON for each case: kind and size of the files, bytes of the mean file, the wanted shape,
// pictures in a second.
#include <time.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "gpu_worker/data/picture.h"
#include "gpu_worker/data/picture_test_files.h"
#include "services/check/check.h"

namespace capstan::data {
namespace {

double CpuSeconds() {
  timespec time{};
  CAPSTAN_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::string Scene(int height, int width, int number, int noise) {
  std::string bytes;
  uint32_t random = 12345u + static_cast<uint32_t>(number);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < 3; ++c) {
        random = random * 1664525u + 1013904223u;
        const double wave = std::sin(0.05 * x + c + number) + std::cos(0.03 * y - 0.5 * c);
        const int value = static_cast<int>(128 + 50 * wave) +
                          static_cast<int>(random >> 16) % (2 * noise + 1) - noise;
        bytes += static_cast<char>(value);
      }
    }
  }
  return bytes;
}

struct Case {
  const char* kind = "";
  int height = 0, width = 0;
  PictureShape want;
  bool progressive = false;
};

void Measure(const Case& c, double seconds) {
  std::vector<std::string> files;
  size_t bytes = 0;
  for (int i = 0; i < 8; ++i) {
    if (c.kind[0] == 'p') {
      files.push_back(PngOf(static_cast<uint32_t>(c.height), static_cast<uint32_t>(c.width), 3,
                            Scene(c.height, c.width, i, 1)));
    } else {
      files.push_back(Jpeg({.width = static_cast<unsigned>(c.width),
                            .height = static_cast<unsigned>(c.height),
                            .quality = 90,
                            .across = 2,
                            .down = 2,
                            .progressive = c.progressive,
                            .bytes = Scene(c.height, c.width, i, 12)}));
    }
    bytes += files.back().size();
  }
  std::vector<uint8_t> to(static_cast<size_t>(c.want.size()));
  int64_t pictures = 0;
  const double start = CpuSeconds();
  double taken = 0;
  while (taken < seconds) {
    for (const std::string& file : files) {
      CAPSTAN_CHECK(DecodePicture(BytesOf(file), c.want, to.data()).ok());
      ++pictures;
    }
    taken = CpuSeconds() - start;
  }
  std::printf(
      "{\"kind\": \"%s%s\", \"height\": %d, \"width\": %d, \"file_bytes\": %zu, \"to\": \"%d x "
      "%d\", "
      "\"pictures_per_second\": %.0f}\n",
      c.kind, c.progressive ? " progressive" : "", c.height, c.width, bytes / files.size(),
      static_cast<int>(c.want.height), static_cast<int>(c.want.width),
      static_cast<double>(pictures) / taken);
}

}  // namespace
}  // namespace capstan::data

int main(int argc, char** argv) {
  double seconds = 2;
  CLI::App app("decoding of JPEG and PNG files on one core");
  app.add_option("--seconds", seconds, "of CPU time for each case")->check(CLI::Range(0.1, 60.0));
  CLI11_PARSE(app, argc, argv);
  using capstan::data::Case;
  for (const Case& c :
       {Case{"jpeg", 375, 500, {3, 224, 224}}, Case{"jpeg", 375, 500, {3, 224, 224}, true},
        Case{"jpeg", 768, 1024, {3, 224, 224}}, Case{"jpeg", 224, 224, {3, 224, 224}},
        Case{"png", 375, 500, {3, 224, 224}}, Case{"png", 32, 32, {3, 32, 32}}}) {
    capstan::data::Measure(c, seconds);
  }
  return 0;
}
