#include "coordinator/core/resolution.h"

#include <utility>

#include "training/codec/sha256.h"

namespace capstan::coordinator::core {

void Resolution::Set(job::v1::ResolvedSpec spec) {
  spec_ = std::move(spec);
  bytes_ = spec_->SerializeAsString();
  training::Sha256 sha256;
  sha256.Update(bytes_);
  const auto digest = sha256.Finish();
  digest_.assign(digest.begin(), digest.end());
}

bool Resolution::Load(std::string bytes, std::string digest) {
  bytes_ = std::move(bytes);
  digest_ = std::move(digest);
  return bytes_.empty() || spec_.emplace().ParseFromString(bytes_);
}

}  // namespace capstan::coordinator::core
