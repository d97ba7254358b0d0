// Feeds any bytes to the decoders of JPEG and PNG. The first byte has the wanted shape: bit 0 one
// channel instead of three, the others choose height and width.
//
// Besides not crashing, an error must have a reason that the job can show, every byte of a picture
// must be set, and a second decoding must give the same.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/picture.h"
#include "services/check/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace cd = capstan::data;
  if (size < 1) return 0;
  const absl::Span<const uint8_t> file(data + 1, size - 1);
  constexpr int64_t kSides[] = {1, 2, 7, 16, 33, 64, 100, 224};
  const cd::PictureShape want = {(data[0] & 1) != 0 ? 1 : 3, kSides[data[0] >> 1 & 7],
                                 kSides[data[0] >> 4 & 7]};
  std::vector<uint8_t> first(static_cast<size_t>(want.size()), 0);
  std::vector<uint8_t> second(first.size(), 255);
  const absl::Status status = cd::DecodePicture(file, want, first.data());
  if (!status.ok()) {
    CAPSTAN_CHECK(!cd::FailureReason(status).empty() && !status.message().empty());
    return 0;
  }
  CAPSTAN_CHECK(cd::DecodePicture(file, want, second.data()).ok());
  CAPSTAN_CHECK(first == second);
  return 0;
}
