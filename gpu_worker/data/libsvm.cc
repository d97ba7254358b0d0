#include "gpu_worker/data/libsvm.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/text_lines.h"

namespace capstan::data {
namespace {

constexpr absl::string_view kBlanks = " \t";

// Splits a line into words and remembers where they begin.
class Words {
 public:
  explicit Words(absl::string_view line) : line_(line) {}

  // False: the line has ended.
  bool Next(absl::string_view& word) {
    begin_ = line_.find_first_not_of(kBlanks, end_);
    if (begin_ == absl::string_view::npos) return false;
    end_ = std::min(line_.find_first_of(kBlanks, begin_), line_.size());
    word = line_.substr(begin_, end_ - begin_);
    return true;
  }
  int64_t byte() const { return static_cast<int64_t>(begin_) + 1; }  // of the word, from 1

 private:
  absl::string_view line_;
  size_t begin_ = 0, end_ = 0;
};

// The label of a sample: a whole number, or where targets are numbers any number.
struct Answer {
  int64_t label = 0;
  float target = 0;
};

// Reads all lines. `sample(answer)` is called at the start of each sample and returns where its
// features go, a null pointer for nowhere; `feature(index)` checks an index.
class LibsvmReader {
 public:
  LibsvmReader(ByteSource& source, bool numbers)
      : source_(source), numbers_(numbers), lines_(source) {}

  template <typename Sample, typename Feature>
  absl::Status Read(Sample sample, Feature feature) {
    std::optional<int64_t> blank;  // number of the first blank line
    for (;;) {
      absl::StatusOr<std::optional<absl::string_view>> line = lines_.Next();
      if (!line.ok()) return line.status();
      if (!line->has_value()) return absl::OkStatus();
      const size_t comment = (*line)->find('#');
      Words words((*line)->substr(0, comment));
      absl::string_view word;
      if (!words.Next(word)) {
        if (comment == absl::string_view::npos && !blank.has_value()) blank = lines_.number();
        continue;
      }
      if (blank.has_value()) {
        return Damaged(absl::StrCat(source_.file(), ": line ", *blank),
                       "is blank, and samples follow");
      }
      absl::Status status = TakeSample(words, word, sample, feature);
      if (!status.ok()) return status;
    }
  }

  const TextLines& lines() const { return lines_; }

 private:
  absl::Status WrongWord(const Words& words, absl::string_view what) const {
    return lines_.Wrong(absl::StrCat("byte ", words.byte(), ": ", what));
  }

  template <typename Sample, typename Feature>
  absl::Status TakeSample(Words& words, absl::string_view word, Sample sample, Feature feature) {
    Answer answer;
    if (const char* const wrong =
            numbers_ ? ParseFloat(word, answer.target) : ParseWhole(word, answer.label)) {
      return WrongWord(
          words, absl::StrCat("label ", Excerpt(word), " ", wrong, NumbersHint(numbers_, word)));
    }
    absl::StatusOr<float*> row = sample(answer);
    if (!row.ok()) return row.status();
    int64_t last = 0;
    while (words.Next(word)) {
      const size_t colon = word.find(':');
      const absl::string_view digits = word.substr(0, colon);
      int64_t index = 0;
      if (colon == absl::string_view::npos || !AllDigits(digits) ||
          !absl::SimpleAtoi(digits, &index)) {
        return WrongWord(words, absl::StrCat(Excerpt(word), " is not index:value"));
      }
      if (index == 0) return WrongWord(words, "index 0, the first feature has index 1");
      if (index <= last) {
        return WrongWord(words, absl::StrCat("index ", index, " behind ", last,
                                             ", want them to "
                                             "rise"));
      }
      absl::Status status = feature(index);
      if (!status.ok()) return status;
      float value = 0;
      if (const char* const wrong = ParseFloat(word.substr(colon + 1), value)) {
        return WrongWord(words, absl::StrCat(Excerpt(word), " ", wrong));
      }
      if (*row != nullptr) (*row)[index - 1] = value;
      last = index;
    }
    return absl::OkStatus();
  }

  static bool AllDigits(absl::string_view text) {
    return !text.empty() &&
           std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isdigit(c); });
  }

  ByteSource& source_;
  const bool numbers_;
  TextLines lines_;
};

absl::Status WrongLabel(const LibsvmLabel& label, absl::string_view want) {
  return InvalidSpec(absl::StrCat(label.place, ": label ", label.label, ", want ", want,
                                  NumbersHint(/*numbers=*/false, absl::StrCat(label.label))));
}

int64_t ClassOf(LibsvmRule rule, int64_t label) {
  switch (rule) {
    case LibsvmRule::kSigned:
      return label > 0 ? 1 : 0;
    case LibsvmRule::kFromZero:
      return label;
    case LibsvmRule::kFromOne:
    case LibsvmRule::kNumbers:
      break;
  }
  return label - 1;
}

}  // namespace

absl::StatusOr<LibsvmScan> ScanLibsvm(ByteSource& source, int64_t max_features,
                                      int64_t memory_limit_bytes, bool numbers) {
  LibsvmScan scan;
  LibsvmReader reader(source, numbers);
  const auto take_label = [&](int64_t label) {
    if (scan.count == 0 || label < scan.lowest.label) scan.lowest = {label, reader.lines().Place()};
    if (scan.count == 0 || label > scan.highest.label) {
      scan.highest = {label, reader.lines().Place()};
    }
    scan.has_zero = scan.has_zero || label == 0;
  };
  const auto sample = [&](const Answer& answer) -> absl::StatusOr<float*> {
    if (!numbers) take_label(answer.label);
    ++scan.count;
    // A sample has one feature or more, and a label.
    if (scan.count > memory_limit_bytes / 8) {
      return InvalidSpec(absl::StrCat(reader.lines().Place(), ": ", scan.count, " samples need ",
                                      scan.count * 8, " bytes of memory or more, limit ",
                                      memory_limit_bytes));
    }
    return nullptr;
  };
  const auto feature = [&](int64_t index) {
    if (index <= max_features) {
      scan.highest_index = std::max(scan.highest_index, index);
      return absl::OkStatus();
    }
    return InvalidSpec(absl::StrCat(reader.lines().Place(), ": index ", index, ", want 1 to ",
                                    max_features, " (features of a sample)"));
  };
  absl::Status status = reader.Read(sample, feature);
  if (!status.ok()) return status;
  if (scan.count == 0) return InvalidSpec(absl::StrCat(source.file(), ": holds no sample"));
  return scan;
}

absl::StatusOr<LibsvmRule> RuleOfLabels(const LibsvmScan& train, const LibsvmScan& test,
                                        int64_t num_classes) {
  LibsvmRule rule = LibsvmRule::kFromOne;
  if (train.has_zero || test.has_zero) rule = LibsvmRule::kFromZero;
  for (const LibsvmScan* scan : {&train, &test}) {
    if (scan->lowest.label < 0) rule = LibsvmRule::kSigned;
  }
  for (const LibsvmScan* scan : {&train, &test}) {
    if (rule == LibsvmRule::kSigned) {
      for (const LibsvmLabel* label : {&scan->lowest, &scan->highest}) {
        if (label->label != -1 && label->label != 1) {
          return WrongLabel(*label, "-1 or +1, because a label is negative");
        }
      }
      if (scan->has_zero) {
        return InvalidSpec(absl::StrCat(scan->lowest.place.substr(0, scan->lowest.place.rfind(':')),
                                        ": has the label 0, want -1 or +1, because a label is "
                                        "negative"));
      }
    }
    const int64_t most = ClassOf(rule, scan->highest.label);
    if (most >= num_classes) {
      return WrongLabel(
          scan->highest,
          absl::StrCat("classes below ", num_classes, " (num_classes), ",
                       rule == LibsvmRule::kFromOne ? "counted from 1" : "counted from 0"));
    }
  }
  return rule;
}

absl::StatusOr<LibsvmTable> FillLibsvm(ByteSource& source, const LibsvmScan& scan, LibsvmRule rule,
                                       int64_t features) {
  LibsvmTable table;
  table.rows = FloatRows(features);
  const bool numbers = rule == LibsvmRule::kNumbers;
  if (numbers) {
    table.targets.reserve(static_cast<size_t>(scan.count));
  } else {
    table.labels.reserve(static_cast<size_t>(scan.count));
  }
  LibsvmReader reader(source, numbers);
  const auto changed = [&reader] {
    return reader.lines().Wrong("has changed since it was checked");
  };
  const auto is_known = [&scan](int64_t label) {
    return label >= scan.lowest.label && label <= scan.highest.label &&
           (label != 0 || scan.has_zero);
  };
  const auto sample = [&](const Answer& answer) -> absl::StatusOr<float*> {
    if (table.rows.count() == scan.count) return changed();
    if (numbers) {
      table.targets.push_back(answer.target);
      return table.rows.Append();
    }
    if (!is_known(answer.label)) return changed();
    table.labels.push_back(static_cast<int32_t>(ClassOf(rule, answer.label)));
    return table.rows.Append();
  };
  const auto feature = [&](int64_t index) {
    return index <= scan.highest_index ? absl::OkStatus() : changed();
  };
  absl::Status status = reader.Read(sample, feature);
  if (status.ok() && table.rows.count() != scan.count) status = changed();
  if (!status.ok()) return status;
  return table;
}

}  // namespace capstan::data
