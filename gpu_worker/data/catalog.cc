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

// Sizes and md5s are from the table in github.com/zalandoresearch/fashion-mnist, README.md.
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

// md5s are from torchvision and sizes from the server's own list. The SHA-256 are of the files of
// yann.lecun.com/exdb/mnist.
constexpr CatalogFile kMnist[] = {
    {"train-images-idx3-ubyte.gz", 9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873",
     "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"},
    {"train-labels-idx1-ubyte.gz", 28881, "d53e105ee54ea40749a09fcbcd1e9432",
     "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"},
    {"t10k-images-idx3-ubyte.gz", 1648877, "9fb629c4189551a2d022fa330f9573f3",
     "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"},
    {"t10k-labels-idx1-ubyte.gz", 4542, "ec29112dd5afa0611ce80d1b7f02629c",
     "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"},
};

// The md5 is from cs.toronto.edu/~kriz/cifar.html. The archive also contains batches.meta.txt and
// readme.html.
constexpr CatalogFile kCifar10[] = {
    {"cifar-10-binary.tar.gz", 170052171, "c32a1d4ab5d03f1284b67883e8d87530",
     "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
};
constexpr CatalogMember kCifar10Members[] = {
    {"data_batch_1.bin", 30730000}, {"data_batch_2.bin", 30730000}, {"data_batch_3.bin", 30730000},
    {"data_batch_4.bin", 30730000}, {"data_batch_5.bin", 30730000}, {"test_batch.bin", 30730000},
};

// Size and md5 are those of the file at revision 6f9487a6fe5b of its repository.
constexpr CatalogFile kTinyShakespeare[] = {
    {"input.txt", 1115394, "6fb458f1232090904fb40fe944165e91",
     "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"},
};

constexpr CatalogEntry kCatalog[] = {
    {"fashion-mnist", "60000 + 10000 grey 28x28 images of clothes in ten classes (Zalando SE)",
     "MIT", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", kFashionMnist},
    {"mnist", "60000 + 10000 grey 28x28 images of digits in ten classes (LeCun, Cortes, Burges)",
     "none stated by the authors", "http://ossci-datasets.s3.amazonaws.com/mnist/", kMnist},
    {"cifar10", "50000 + 10000 color 32x32 images in ten classes (Krizhevsky, Nair, Hinton)",
     "none stated by the authors", "https://www.cs.toronto.edu/~kriz/", kCifar10,
     "cifar-10-batches-bin", kCifar10Members},
    {"tinyshakespeare", "1115394 characters of Shakespeare's plays, 65 different ones (Karpathy)",
     "public domain",
     "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",
     kTinyShakespeare},
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

}  // namespace capstan::data
