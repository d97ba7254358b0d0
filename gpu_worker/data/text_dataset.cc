// Data sets of text (text.h).
#include <algorithm>
#include <array>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/data_path.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/stored_dataset.h"
#include "gpu_worker/data/text.h"

namespace capstan::data {
namespace {

// Windows of one part of a text, one after the other.
class TextWindows final : public ImageBytes {
 public:
  TextWindows(std::vector<uint8_t> tokens, int64_t first, int64_t length)
      : tokens_(std::move(tokens)), first_(first), length_(length) {}

  absl::StatusOr<const uint8_t*> Image(int64_t index, uint8_t*) const override {
    return tokens_.data() + first_ + index * length_;
  }
  int32_t Label(int64_t index) const override { return tokens_[first_ + (index + 1) * length_]; }

 private:
  const std::vector<uint8_t> tokens_;
  const int64_t first_;  // of the part
  const int64_t length_;
};

// A part of a file: characters [first, first + count).
struct TextPart {
  std::string file;
  int64_t first = 0, count = 0;
  std::vector<uint8_t> bytes;  // only of the split that is opened
};

struct OpenedText {
  TextPart train, test;
  Vocabulary vocabulary;
};

// `keep`: the split whose bytes are kept, if one is given.
absl::StatusOr<OpenedText> OpenBoth(const DatasetOptions& options, std::optional<Split> keep) {
  absl::StatusOr<std::string> folder = ParseDataUri(options.path_or_uri);
  if (!folder.ok()) return folder.status();
  OpenedText opened;
  const auto read = [&](const std::string& name, bool kept, TextPart& part) {
    absl::StatusOr<std::unique_ptr<ByteSource>> source = OpenDataFile(*folder, name, options.roots);
    if (!source.ok()) return source.status();
    absl::StatusOr<TextScan> scan =
        ScanText(**source, kept, options.memory_limit_bytes, opened.vocabulary);
    if (!scan.ok()) return scan.status();
    part.file = (*source)->file();
    part.count = scan->count;
    part.bytes = std::move(scan->bytes);
    return absl::OkStatus();
  };
  const bool one_file = options.test_file.empty();
  const std::string train_file = options.train_file.empty() ? "input.txt" : options.train_file;
  absl::Status status =
      read(train_file, keep == Split::kTrain || (one_file && keep.has_value()), opened.train);
  if (!status.ok()) return status;
  if (!one_file) {
    status = read(options.test_file, keep == Split::kTest, opened.test);
    if (!status.ok()) return status;
    return opened;
  }
  opened.test.file = opened.train.file;
  opened.test.count = TestCharacters(opened.train.count, options.test_fraction);
  opened.train.count -= opened.test.count;
  opened.test.first = opened.train.count;
  std::vector<uint8_t>& bytes = opened.train.bytes;  // of the whole file
  if (keep == Split::kTest) {
    opened.test.bytes.assign(bytes.begin() + opened.test.first, bytes.end());
    opened.test.first = 0;
    bytes = {};
  } else if (keep == Split::kTrain) {
    bytes.resize(static_cast<size_t>(opened.train.count));
    bytes.shrink_to_fit();
  }
  return opened;
}

absl::StatusOr<DatasetInfo> TextInfo(const DatasetOptions& options, const OpenedText& opened,
                                     Split split) {
  const bool train = split == Split::kTrain;
  const TextPart& part = train ? opened.train : opened.test;
  const int64_t length = options.sequence_length;
  if (part.count <= length) {
    return InvalidSpec(
        absl::StrCat(part.file, ": the ", train ? "training" : "test", " set has ", part.count,
                     " characters, want at least ", length + 1,
                     ", data.sequence_length and the one that follows",
                     options.test_file.empty()
                         ? absl::StrCat(" (data.test_fraction is ", options.test_fraction, ")")
                         : ""));
  }
  const int64_t classes = opened.vocabulary.size();
  if (classes > options.num_classes) {
    return InvalidSpec(absl::StrCat(part.file, ": the text has ", classes,
                                    " different characters, model.num_classes is ",
                                    options.num_classes, ", want ", classes));
  }
  return DatasetInfo{(part.count - 1) / length, 1, 1, length, classes};
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenTextOrThrow(const DatasetOptions& options,
                                                         Split split) {
  absl::StatusOr<OpenedText> opened = OpenBoth(options, split);
  if (!opened.ok()) return opened.status();
  const absl::StatusOr<DatasetInfo> info = TextInfo(options, *opened, split);
  if (!info.ok()) return info.status();
  TextPart& part = split == Split::kTrain ? opened->train : opened->test;
  const std::array<uint8_t, 256> tokens = opened->vocabulary.Tokens();
  for (uint8_t& byte : part.bytes) byte = tokens[byte];
  return MakeTokenDataset(*info, std::make_unique<TextWindows>(std::move(part.bytes), part.first,
                                                               options.sequence_length));
}

absl::StatusOr<DatasetProbe> ProbeTextOrThrow(const DatasetOptions& options) {
  const absl::StatusOr<OpenedText> opened = OpenBoth(options, std::nullopt);
  if (!opened.ok()) return opened.status();
  const absl::StatusOr<DatasetInfo> train = TextInfo(options, *opened, Split::kTrain);
  if (!train.ok()) return train.status();
  const absl::StatusOr<DatasetInfo> test = TextInfo(options, *opened, Split::kTest);
  if (!test.ok()) return test.status();
  return DatasetProbe{*train, *test};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const DatasetOptions& options, Split split) {
  try {
    return OpenTextOrThrow(options, split);
  } catch (const std::bad_alloc&) {
    return HostOutOfMemory(options.path_or_uri);
  }
}

absl::StatusOr<DatasetProbe> ProbeText(const DatasetOptions& options) {
  try {
    return ProbeTextOrThrow(options);
  } catch (const std::bad_alloc&) {
    return HostOutOfMemory(options.path_or_uri);
  }
}

}  // namespace capstan::data
