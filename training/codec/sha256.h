// SHA-256 (FIPS 180-4), in pieces; and the hash of a model's weights.
#ifndef CAPSTAN_TRAINING_CODEC_SHA256_H_
#define CAPSTAN_TRAINING_CODEC_SHA256_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace capstan::training {

// One hash in progress. Not thread-safe. Movable; a moved-from object may only be destroyed.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Update(const void* data, size_t size_bytes);
  void Update(absl::string_view bytes) { Update(bytes.data(), bytes.size()); }

  // The hash of all bytes so far. Afterwards the object is like new.
  std::array<uint8_t, 32> Finish();
  // The same, as 64 lower-case hexadecimal digits.
  std::string FinishHex();

 private:
  struct FreeContext {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, FreeContext> context_;
};

// The hash of `bytes` as 64 lower-case hexadecimal digits.
std::string Sha256Hex(absl::string_view bytes);

// True for 64 lower-case hexadecimal digits.
bool IsSha256Hex(absl::string_view text);

// `weights_sha256` of a model: the hash of the tensors' little-endian fp32 bytes, one tensor after
// the other without padding. The caller gives them in forward layer order, weight before bias,
// running statistics last.
std::string WeightsSha256(absl::Span<const absl::Span<const float>> tensors);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_CODEC_SHA256_H_
