#include "training/compress/gradient_format.h"

#include <algorithm>

#include "services/check/check.h"
#include "training/compress/encodings.h"
#include "training/fold/add.h"

namespace capstan::training {
namespace {

// A float for each block, then `in_word` numbers in a word.
int64_t BlockWords(int64_t floats, int64_t in_word) {
  const int64_t rest = floats % compress::kBlock;
  return floats / compress::kBlock * (1 + compress::kBlock / in_word) +
         (rest > 0 ? 1 + (rest + in_word - 1) / in_word : 0);
}

}  // namespace

int64_t EncodedWords(const GradientFormat& format, int64_t floats) {
  switch (format.encoding) {
    case GradientEncoding::kNone:
      return floats;
    case GradientEncoding::kFloat16:
    case GradientEncoding::kBFloat16:
      return (floats + 1) / 2;
    case GradientEncoding::kInt8:
      return BlockWords(floats, 4);
    case GradientEncoding::kTwoBit:
      return 1 + (floats + 15) / 16;
    case GradientEncoding::kOneBit:
      return BlockWords(floats, 32);
    case GradientEncoding::kTopK:
      return 2 * compress::KeptOf(format.ratio, floats);
  }
  return floats;
}

void Encode(const GradientFormat& format, absl::Span<const float> gradient, absl::Span<float> out) {
  CAPSTAN_CHECK(static_cast<int64_t>(out.size()) ==
                EncodedWords(format, static_cast<int64_t>(gradient.size())));
  CAPSTAN_CHECK(!format.has_feedback());
  switch (format.encoding) {
    case GradientEncoding::kFloat16:
      return compress::EncodeBinary16(gradient, out);
    case GradientEncoding::kBFloat16:
      return compress::EncodeBFloat16(gradient, out);
    case GradientEncoding::kInt8:
      return compress::EncodeInt8(gradient, out);
    default:
      std::copy(gradient.begin(), gradient.end(), out.begin());
  }
}

void EncodeWithFeedback(const GradientFormat& format, const FeedbackArgs& args,
                        absl::Span<const float> gradient, absl::Span<const float> residual,
                        absl::Span<float> new_residual, absl::Span<float> out) {
  CAPSTAN_CHECK(static_cast<int64_t>(out.size()) ==
                EncodedWords(format, static_cast<int64_t>(gradient.size())));
  CAPSTAN_CHECK(residual.size() == gradient.size() && new_residual.size() == gradient.size());
  const auto scale = static_cast<float>(args.loss_scale);
  const float unscale = 1 / scale;
  for (size_t i = 0; i < gradient.size(); ++i) {
    new_residual[i] = gradient[i] * unscale + residual[i];
  }
  const bool finite = AllFinite(new_residual);
  switch (format.encoding) {
    case GradientEncoding::kTwoBit:
      if (!finite) {
        compress::EncodeNothing(out);
        break;
      }
      compress::EncodeTwoBit(static_cast<float>(format.threshold / args.samples), scale,
                             new_residual, out);
      break;
    case GradientEncoding::kOneBit:
      if (!finite) {
        compress::EncodeNothing(out);
        break;
      }
      compress::EncodeOneBit(scale, args.padding, new_residual, out);
      break;
    case GradientEncoding::kTopK:
      compress::EncodeTopK(scale, new_residual, out);
      break;
    default:
      CAPSTAN_CHECK(false);
  }
  if (!finite) std::copy(residual.begin(), residual.end(), new_residual.begin());
}

bool IsWellFormed(const GradientFormat& format, absl::Span<const float> encoded, int64_t floats) {
  return format.encoding != GradientEncoding::kTopK || compress::IsTopK(encoded, floats);
}

void Decode(const GradientFormat& format, absl::Span<const float> encoded, absl::Span<float> out) {
  CAPSTAN_CHECK(static_cast<int64_t>(encoded.size()) ==
                EncodedWords(format, static_cast<int64_t>(out.size())));
  switch (format.encoding) {
    case GradientEncoding::kNone:
      std::copy(encoded.begin(), encoded.end(), out.begin());
      return;
    case GradientEncoding::kFloat16:
      return compress::DecodeBinary16(encoded, out);
    case GradientEncoding::kBFloat16:
      return compress::DecodeBFloat16(encoded, out);
    case GradientEncoding::kInt8:
      return compress::DecodeInt8(encoded, out);
    case GradientEncoding::kTwoBit:
      return compress::DecodeTwoBit(encoded, out);
    case GradientEncoding::kOneBit:
      return compress::DecodeOneBit(encoded, out);
    case GradientEncoding::kTopK:
      return compress::DecodeTopK(encoded, out);
  }
}

}  // namespace capstan::training
