#include "gpu_worker/data/catalog.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/data/byte_source.h"
#include "gpu_worker/data/failure.h"
#include "training/codec/sha256.h"

namespace capstan::data {
namespace {

// Sizes and md5s as in the table of github.com/zalandoresearch/fashion-mnist, README.md.
constexpr CatalogFile kFashionMnist[] = {
    {"train-images-idx3-ubyte.gz", 26421880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
     "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"},
    {"train-labels-idx1-ubyte.gz", 29515, "25c81989df183df01b3e8a0aad5dffbe",
     "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"},
    {"t10k-images-idx3-ubyte.gz", 4422102, "bef4ecab320f06d8554ea6380940ec79",
     "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"},
    {"t10k-labels-idx1-ubyte.gz", 5148, "bb300cfdad3c16e7a12a480ee83cd310",
     "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"},
};

constexpr CatalogEntry kCatalog[] = {
    {"fashion-mnist", "60000 + 10000 grey 28x28 images of clothes in ten classes (Zalando SE)",
     "MIT", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", kFashionMnist},
};

}  // namespace

absl::Span<const CatalogEntry> Catalog() { return kCatalog; }

const CatalogEntry* FindInCatalog(absl::string_view name) {
  for (const CatalogEntry& entry : kCatalog) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

absl::Status VerifyFile(const std::string& folder, const CatalogFile& file) {
  const std::string path = absl::StrCat(folder, "/", file.name);
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    const absl::StatusCode code = errno == ENOENT   ? absl::StatusCode::kNotFound
                                  : errno == EACCES ? absl::StatusCode::kPermissionDenied
                                                    : absl::StatusCode::kFailedPrecondition;
    return DataMissing(code, absl::StrCat(path, ": ", strerror(errno)));
  }
  absl::StatusOr<std::unique_ptr<ByteSource>> source = FileSource(path, descriptor);
  if (!source.ok()) return source.status();
  if ((*source)->stored_bytes() != file.size_bytes) {
    return Damaged(path, absl::StrCat((*source)->stored_bytes(), " bytes, want ", file.size_bytes));
  }
  training::Sha256 hash;
  std::vector<uint8_t> block(size_t{1} << 20);
  for (;;) {
    absl::StatusOr<size_t> got = (*source)->Read(block.data(), block.size());
    if (!got.ok()) return got.status();
    hash.Update(block.data(), *got);
    if (*got < block.size()) break;
  }
  const std::string sha256 = hash.FinishHex();
  if (sha256 != file.sha256) {
    return Damaged(path, absl::StrCat("sha256 ", sha256, ", want ", file.sha256));
  }
  return absl::OkStatus();
}

absl::Status VerifyFiles(const std::string& folder, const CatalogEntry& entry) {
  for (const CatalogFile& file : entry.files) {
    absl::Status status = VerifyFile(folder, file);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace capstan::data
