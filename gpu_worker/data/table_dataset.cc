#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/csv.h"
#include "gpu_worker/data/data_path.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/libsvm.h"
#include "gpu_worker/data/sample_limits.h"
#include "gpu_worker/data/stored_dataset.h"
#include "gpu_worker/data/text_lines.h"

namespace capstan::data {
namespace {

class TableFloats final : public ImageFloats {
 public:
  TableFloats(int64_t features, FloatRows rows, std::vector<int32_t> labels)
      : features_(features), rows_(std::move(rows)), labels_(std::move(labels)) {}

  absl::Status Copy(int64_t index, float* image) const override {
    std::copy(rows_.Row(index), rows_.Row(index) + features_, image);
    return absl::OkStatus();
  }
  int32_t Label(int64_t index) const override { return LabelAt(labels_, index); }

 private:
  const int64_t features_;
  const FloatRows rows_;
  const std::vector<int32_t> labels_;
};

absl::StatusOr<std::unique_ptr<ByteSource>> OpenTableFile(const DatasetOptions& options,
                                                          Split split) {
  absl::StatusOr<std::string> folder = ParseDataUri(options.path_or_uri);
  if (!folder.ok()) return folder.status();
  const bool train = split == Split::kTrain;
  std::string name = train ? options.train_file : options.test_file;
  if (name.empty()) {
    name =
        absl::StrCat(train ? "train" : "test", options.format == Format::kCsv ? ".csv" : ".libsvm");
  }
  return OpenDataFile(*folder, name, options.roots);
}

// What the network reads. InvalidSpec: another number of features than data.shape has.
absl::StatusOr<DatasetInfo> TableInfo(const DatasetOptions& options, const std::string& file,
                                      int64_t count, int64_t features) {
  const ImageShape shape =
      options.shape == ImageShape{} ? ImageShape{1, 1, features} : options.shape;
  if (shape.size() == features) {
    DatasetInfo info = {count, shape.channels, shape.height, shape.width};
    info.target_size = options.target_size;
    if (info.target_size == 0) info.num_classes = options.num_classes;
    return info;
  }
  return InvalidSpec(absl::StrCat(file, ": samples of ", features, " features, data.shape ",
                                  shape.channels, " x ", shape.height, " x ", shape.width, " has ",
                                  shape.size()));
}

struct OpenedCsv {
  std::string file;
  CsvTable table;
  DatasetInfo info;
};

absl::StatusOr<OpenedCsv> OpenCsv(const DatasetOptions& options, Split split, bool keep) {
  absl::StatusOr<std::unique_ptr<ByteSource>> source = OpenTableFile(options, split);
  if (!source.ok()) return source.status();
  absl::StatusOr<CsvTable> table =
      ReadCsv(**source, {.label_column = options.label_column,
                         .num_classes = options.num_classes,
                         .numbers = options.target_size > 0,
                         .keep = keep,
                         .memory_limit_bytes = options.memory_limit_bytes});
  if (!table.ok()) return table.status();
  absl::StatusOr<DatasetInfo> info =
      TableInfo(options, (*source)->file(), table->count, table->features);
  if (!info.ok()) return info.status();
  return OpenedCsv{(*source)->file(), *std::move(table), *info};
}

absl::StatusOr<DatasetProbe> ProbeCsv(const DatasetOptions& options) {
  absl::StatusOr<OpenedCsv> train = OpenCsv(options, Split::kTrain, /*keep=*/false);
  if (!train.ok()) return train.status();
  absl::StatusOr<OpenedCsv> test = OpenCsv(options, Split::kTest, /*keep=*/false);
  if (!test.ok()) return test.status();
  const CsvTable& a = train->table;
  const CsvTable& b = test->table;
  if (a.features != b.features) {
    return InvalidSpec(absl::StrCat(train->file, ": samples of ", a.features, " features, but ",
                                    test->file, " has ", b.features));
  }
  if (!a.names.empty() && !b.names.empty()) {
    for (int64_t i = 0; i < a.features; ++i) {
      if (a.names[i] == b.names[i]) continue;
      return InvalidSpec(absl::StrCat(train->file, ": the header names feature ", i, " ",
                                      Excerpt(a.names[i]), ", but ", test->file, " names it ",
                                      Excerpt(b.names[i])));
    }
    if (a.label_name != b.label_name) {
      return InvalidSpec(absl::StrCat(train->file, ": the header names the label ",
                                      Excerpt(a.label_name), ", but ", test->file, " names it ",
                                      Excerpt(b.label_name)));
    }
  }
  return DatasetProbe{train->info, test->info};
}

// Both files of a libsvm set, checked.
struct OpenedLibsvm {
  LibsvmScan train, test;
  LibsvmRule rule = LibsvmRule::kFromZero;
  int64_t features = 0;
  DatasetProbe info;
};

absl::StatusOr<OpenedLibsvm> OpenLibsvm(const DatasetOptions& options) {
  const int64_t given = options.features > 0 ? options.features : options.shape.size();
  OpenedLibsvm opened;
  std::string files[2];
  for (const Split split : {Split::kTrain, Split::kTest}) {
    absl::StatusOr<std::unique_ptr<ByteSource>> source = OpenTableFile(options, split);
    if (!source.ok()) return source.status();
    absl::StatusOr<LibsvmScan> scan =
        ScanLibsvm(**source, given > 0 ? given : kMaxSampleFeatures, options.memory_limit_bytes,
                   options.target_size > 0);
    if (!scan.ok()) return scan.status();
    files[static_cast<int>(split)] = (*source)->file();
    (split == Split::kTrain ? opened.train : opened.test) = *std::move(scan);
  }
  const absl::StatusOr<LibsvmRule> rule =
      options.target_size > 0 ? LibsvmRule::kNumbers
                              : RuleOfLabels(opened.train, opened.test, options.num_classes);
  if (!rule.ok()) return rule.status();
  opened.rule = *rule;
  opened.features =
      given > 0 ? given : std::max(opened.train.highest_index, opened.test.highest_index);
  if (opened.features == 0) {
    return InvalidSpec(absl::StrCat(files[0], ": no sample has a feature"));
  }
  for (const Split split : {Split::kTrain, Split::kTest}) {
    const bool train = split == Split::kTrain;
    const std::string& file = files[static_cast<int>(split)];
    const int64_t count = train ? opened.train.count : opened.test.count;
    const int64_t sample_bytes = 4 * (opened.features + 1);
    if (count > options.memory_limit_bytes / sample_bytes) {
      return InvalidSpec(absl::StrCat(
          file, ": ", count, " samples of ", opened.features, " features and a label need ",
          count > std::numeric_limits<int64_t>::max() / sample_bytes
              ? std::string("2^63 or more")
              : absl::StrCat(count * sample_bytes),
          " bytes of memory, limit ", options.memory_limit_bytes,
          "; tables are held in memory, as 4 bytes for each number, also for zeros"));
    }
    absl::StatusOr<DatasetInfo> info = TableInfo(options, file, count, opened.features);
    if (!info.ok()) return info.status();
    (train ? opened.info.train : opened.info.test) = *info;
  }
  return opened;
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenTableOrThrow(const DatasetOptions& options,
                                                          Split split) {
  if (options.format == Format::kCsv) {
    absl::StatusOr<OpenedCsv> opened = OpenCsv(options, split, /*keep=*/true);
    if (!opened.ok()) return opened.status();
    CsvTable& table = opened->table;
    return WithTargets(MakeFloatDataset(opened->info, std::make_unique<TableFloats>(
                                                          table.features, std::move(table.rows),
                                                          std::move(table.labels))),
                       std::move(table.targets));
  }
  absl::StatusOr<OpenedLibsvm> opened = OpenLibsvm(options);
  if (!opened.ok()) return opened.status();
  absl::StatusOr<std::unique_ptr<ByteSource>> source = OpenTableFile(options, split);
  if (!source.ok()) return source.status();
  const bool train = split == Split::kTrain;
  absl::StatusOr<LibsvmTable> table =
      FillLibsvm(**source, train ? opened->train : opened->test, opened->rule, opened->features);
  if (!table.ok()) return table.status();
  return WithTargets(
      MakeFloatDataset(train ? opened->info.train : opened->info.test,
                       std::make_unique<TableFloats>(opened->features, std::move(table->rows),
                                                     std::move(table->labels))),
      std::move(table->targets));
}

absl::StatusOr<DatasetProbe> ProbeTableOrThrow(const DatasetOptions& options) {
  if (options.format == Format::kCsv) return ProbeCsv(options);
  absl::StatusOr<OpenedLibsvm> opened = OpenLibsvm(options);
  if (!opened.ok()) return opened.status();
  return opened->info;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenTable(const DatasetOptions& options, Split split) {
  try {
    return OpenTableOrThrow(options, split);
  } catch (const std::bad_alloc&) {
    return HostOutOfMemory(options.path_or_uri);
  }
}

absl::StatusOr<DatasetProbe> ProbeTable(const DatasetOptions& options) {
  try {
    return ProbeTableOrThrow(options);
  } catch (const std::bad_alloc&) {
    return HostOutOfMemory(options.path_or_uri);
  }
}

}  // namespace capstan::data
