#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "training/codec/local_uri.h"
#include "training/graph/models.h"
#include "training/spec/rules.h"

namespace capstan::training::spec {
namespace {

constexpr int64_t kMaxFeatures = 1 << 20;
constexpr int64_t kMaxImageSide = 1 << 14;
constexpr int64_t kMaxNameBytes = 255;
constexpr int64_t kMaxSequenceLength = 1 << 14;
constexpr double kMaxTestFraction = 0.9;

// -1, or the digits of an index.
bool IsColumnIndex(absl::string_view text) {
  absl::string_view digits = text;
  if (!digits.empty() && digits[0] == '-') digits.remove_prefix(1);
  for (const char c : digits) {
    if (!absl::ascii_isdigit(c)) return false;
  }
  return !digits.empty();
}

void CheckLabelColumn(const std::string& column, Rules& rules) {
  if (!IsColumnIndex(column)) {
    if (column.empty() || static_cast<int64_t>(column.size()) > kMaxNameBytes ||
        HasControl(column)) {
      rules.Wrong("data.label_column",
                  absl::StrCat("takes an index or a name of 1 to ", kMaxNameBytes,
                               " printable characters, found ", column.size(), " bytes"));
    }
    return;
  }
  int64_t index = 0;
  if (!absl::SimpleAtoi(column, &index) || index < -1 || index > kMaxFeatures) {
    rules.Wrong("data.label_column", absl::StrCat("takes -1 (the last column), an index up to ",
                                                  kMaxFeatures, " or a name, found ", column));
  }
}

// `may_be_packed`: the file is also looked for with .gz or .xz behind its name.
void CheckFileName(absl::string_view path, const std::string& name, bool may_be_packed,
                   Rules& rules) {
  for (const absl::string_view packed : {".gz", ".xz"}) {
    if (!may_be_packed || !absl::EndsWith(name, packed)) continue;
    return rules.Wrong(
        path, absl::StrCat("must be the name without ", packed, ", which is tried as well"));
  }
  if (name.empty() || static_cast<int64_t>(name.size()) > kMaxNameBytes || name == "." ||
      name == ".." || absl::StrContains(name, '/') || HasControl(name)) {
    rules.Wrong(path,
                absl::StrCat("must be the name of a file in the folder, 1 to ", kMaxNameBytes,
                             " bytes without a slash, found '",
                             name.substr(0, name.find_first_of("\n\r\t\x1b")).substr(0, 80), "'"));
  }
}

bool HasPictures(const job::v1::Data& data) {
  return data.format() == "image_folder" || data.format() == "rec";
}

// The number of elements, which is at most 2^42.
int64_t ShapeSize(const job::v1::Data& data) {
  int64_t size = 1;
  for (const int32_t side : data.shape()) size *= side;
  return size;
}

void CheckShape(const job::v1::Data& data, Rules& rules) {
  if (data.shape_size() != 3) {
    return rules.Wrong("data.shape", absl::StrCat("takes [channels, height, width], found ",
                                                  data.shape_size(), " entries"));
  }
  for (const int32_t side : data.shape()) {
    if (side < 1 || side > kMaxImageSide) {
      return rules.Wrong("data.shape", absl::StrCat("takes numbers between 1 and ", kMaxImageSide,
                                                    ", found ", side));
    }
  }
  const int64_t size = ShapeSize(data);
  if (size > kMaxFeatures) {
    return rules.Wrong("data.shape", absl::StrCat("has ", size, " numbers for a sample, ",
                                                  kMaxFeatures, " is the limit"));
  }
  const int32_t channels = data.shape(0);
  if (HasPictures(data) && channels != 1 && channels != 3) {
    return rules.Wrong("data.shape", absl::StrCat("takes 1 or 3 channels for '", data.format(),
                                                  "', found ", channels));
  }
  if (data.has_features() && data.features() != size) {
    rules.Fail("data.features", absl::StrCat("is ", data.features(), ", 'data.shape' has ", size,
                                             " numbers for a sample"));
  }
}

// Keys that only some formats have.
void CheckTableKeys(const job::v1::Data& d, Rules& rules) {
  const bool csv = d.format() == "csv", libsvm = d.format() == "libsvm";
  const auto only = [&rules](absl::string_view path, const char* formats) {
    rules.Fail(path, absl::StrCat("is for ", formats, " only"));
  };
  if (d.has_label_column()) {
    if (csv) CheckLabelColumn(d.label_column(), rules);
    if (!csv) only("data.label_column", "'csv'");
  }
  if (d.has_features()) {
    if (libsvm) rules.Range<int64_t>("data.features", d.features(), 1, kMaxFeatures);
    if (!libsvm) only("data.features", "'libsvm'");
  }
  const bool table = csv || libsvm, text = d.format() == "text";
  if (d.has_sequence_length()) {
    if (text) {
      rules.Range<int64_t>("data.sequence_length", d.sequence_length(), 1, kMaxSequenceLength);
    } else {
      only("data.sequence_length", "'text'");
    }
  }
  if (d.has_test_fraction()) {
    if (!text) only("data.test_fraction", "'text'");
    if (text && !(d.test_fraction() > 0 && d.test_fraction() <= kMaxTestFraction)) {
      rules.Wrong("data.test_fraction",
                  absl::StrCat("must be above 0 and at most ", kMaxTestFraction, ", found ",
                               d.test_fraction()));
    }
    if (text && d.has_test_file()) {
      rules.Fail("data.test_fraction", "and 'data.test_file' exclude each other: give one of them");
    }
  }
  if (text && d.transforms_size() > 0) {
    rules.Fail("data.transforms", "are for images, the samples of 'text' are characters");
  }
  if (d.shape_size() > 0) {
    const bool has = table || HasPictures(d);
    if (has) CheckShape(d, rules);
    if (!has) only("data.shape", "'csv', 'libsvm', 'image_folder' and 'rec'");
  }
  const bool has_files = table || text || d.format() == "rec";
  constexpr char kWithFiles[] = "'csv', 'libsvm', 'rec' and 'text'";
  if (d.has_train_file()) {
    if (has_files) CheckFileName("data.train_file", d.train_file(), table || text, rules);
    if (!has_files) only("data.train_file", kWithFiles);
  }
  if (d.has_test_file()) {
    if (has_files) CheckFileName("data.test_file", d.test_file(), table || text, rules);
    if (!has_files) only("data.test_file", kWithFiles);
  }
}

}  // namespace

void CheckData(const job::v1::JobSpec& spec, Rules& rules) {
  const auto& d = spec.data();
  rules.Required("data.format", d.has_format());
  if (d.has_format()) {
    rules.OneOf("data.format", d.format(),
                {"idx", "cifar10_bin", "npz", "csv", "libsvm", "image_folder", "rec", "text",
                 "synthetic_digits"});
  }
  const bool synthetic = d.format() == "synthetic_digits";
  const bool cifar = d.format() == "cifar10_bin";
  CheckTransforms(d, rules);
  if (synthetic && d.has_uri())
    rules.Fail("data.uri", "has no meaning for 'synthetic_digits', which draws its own images");
  for (const char* files :
       {"idx", "cifar10_bin", "npz", "csv", "libsvm", "image_folder", "rec", "text"}) {
    if (d.format() == files) rules.Required("data.uri", d.has_uri());
  }
  if (d.has_uri()) {
    const auto path = LocalPath(d.uri());
    if (!path.ok()) rules.Wrong("data.uri", path.status().message());
  }
  if (d.has_partition()) rules.OneOf("data.partition", d.partition(), {"global", "contiguous"});
  if (d.has_prefetch_batches())
    rules.Range<int64_t>("data.prefetch_batches", d.prefetch_batches(), 1, 64);
  if (d.has_reader_threads())
    rules.Range<int64_t>("data.reader_threads", d.reader_threads(), 1, 64);
  if (d.has_train_samples())
    rules.Range<int64_t>("data.train_samples", d.train_samples(), 10, 10000000);
  if (d.has_test_samples())
    rules.Range<int64_t>("data.test_samples", d.test_samples(), 10, 10000000);
  if (!synthetic && d.has_format()) {
    if (d.has_train_samples()) rules.Fail("data.train_samples", "is for 'synthetic_digits' only");
    if (d.has_test_samples()) rules.Fail("data.test_samples", "is for 'synthetic_digits' only");
  }
  if (d.has_format()) CheckTableKeys(d, rules);
  const bool images = synthetic || cifar || HasPictures(d) || d.format() == "idx";
  if (images && ModelReadsTokens(spec.model().name())) {
    rules.Fail("model.name", absl::StrCat("is ", spec.model().name(),
                                          ", which reads tokens: 'data.format' must be text, or "
                                          "npz, csv or libsvm with tokens, found '",
                                          d.format(), "'"));
  }
  if ((synthetic || cifar) && spec.model().has_num_classes() && spec.model().num_classes() != 10) {
    rules.Fail("model.num_classes", absl::StrCat("must be 10 for '", d.format(), "', found ",
                                                 spec.model().num_classes()));
  }
}

void FillDataDefaults(job::v1::Data& data) {
  if (data.format() == "text") {
    if (!data.has_train_file()) data.set_train_file("input.txt");
    if (!data.has_sequence_length()) data.set_sequence_length(64);
    if (!data.has_test_file() && !data.has_test_fraction()) data.set_test_fraction(0.1);
    return;
  }
  const bool csv = data.format() == "csv", libsvm = data.format() == "libsvm";
  if (HasPictures(data) && data.shape_size() == 0) {
    for (const int32_t side : {3, 224, 224}) data.add_shape(side);
  }
  if (!csv && !libsvm && data.format() != "rec") return;
  if (csv && !data.has_label_column()) data.set_label_column("0");
  if (!data.has_train_file()) data.set_train_file(absl::StrCat("train.", data.format()));
  if (!data.has_test_file()) data.set_test_file(absl::StrCat("test.", data.format()));
  if (libsvm && !data.has_features() && data.shape_size() > 0) {
    data.set_features(static_cast<int32_t>(ShapeSize(data)));
  }
}

bool HasVectors(const job::v1::Data& data, const common::v1::DatasetInfo& dataset) {
  const bool may = data.format() == "npz" || data.format() == "csv" || data.format() == "libsvm";
  return may && dataset.channels() == 1 && dataset.height() == 1;
}

}  // namespace capstan::training::spec
