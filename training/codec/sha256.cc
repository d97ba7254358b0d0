#include "training/codec/sha256.h"

#include <openssl/evp.h>

#include <bit>

#include "absl/strings/escaping.h"
#include "services/check/check.h"

namespace capstan::training {

static_assert(std::endian::native == std::endian::little,
              "WeightsSha256 hashes the bytes of floats as they lie in memory");

void Sha256::FreeContext::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

// The digest is built into the library, so these calls fail only if there is no memory.
Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  CAPSTAN_CHECK(context_ != nullptr);
  CAPSTAN_CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Update(const void* data, size_t size_bytes) {
  CAPSTAN_CHECK(EVP_DigestUpdate(context_.get(), data, size_bytes) == 1);
}

std::array<uint8_t, 32> Sha256::Finish() {
  std::array<uint8_t, 32> digest;
  unsigned int size = 0;
  CAPSTAN_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), &size) == 1);
  CAPSTAN_CHECK(size == digest.size());
  CAPSTAN_CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  return digest;
}

std::string Sha256::FinishHex() {
  const std::array<uint8_t, 32> digest = Finish();
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

std::string Sha256Hex(absl::string_view bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.FinishHex();
}

bool IsSha256Hex(absl::string_view text) {
  if (text.size() != 64) return false;
  for (const char c : text) {
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
  }
  return true;
}

std::string WeightsSha256(absl::Span<const absl::Span<const float>> tensors) {
  Sha256 hash;
  for (const absl::Span<const float>& tensor : tensors) {
    hash.Update(tensor.data(), tensor.size() * sizeof(float));
  }
  return hash.FinishHex();
}

}  // namespace capstan::training
