#include "gpu_worker/data/csv.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/data/sample_limits.h"
#include "gpu_worker/data/text_lines.h"

namespace capstan::data {
namespace {

bool IsBlank(char c) { return c == ' ' || c == '\t'; }

absl::string_view WithoutBlanks(absl::string_view text) {
  while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsBlank(text.back())) text.remove_suffix(1);
  return text;
}

// Splits a line at its commas.
class CsvFields {
 public:
  explicit CsvFields(absl::string_view line) : rest_(line) {}

  // The next field without quotes and the blanks around it. Doubled quotes stay doubled. False: the
  // line has ended, or wrong() says what is wrong with this field.
  bool Next(absl::string_view& field) {
    if (ended_) return false;
    size_t start = 0;
    while (start < rest_.size() && IsBlank(rest_[start])) ++start;
    size_t comma;
    if (start < rest_.size() && rest_[start] == '"') {
      size_t end = rest_.find('"', start + 1);
      while (end != absl::string_view::npos && end + 1 < rest_.size() && rest_[end + 1] == '"') {
        end = rest_.find('"', end + 2);
      }
      if (end == absl::string_view::npos) return Fail("has a quote without an end");
      field = rest_.substr(start + 1, end - start - 1);
      comma = end + 1;
      while (comma < rest_.size() && IsBlank(rest_[comma])) ++comma;
      if (comma < rest_.size() && rest_[comma] != ',') return Fail("has text behind its quotes");
      if (comma >= rest_.size()) comma = absl::string_view::npos;
    } else {
      comma = rest_.find(',', start);
      field = WithoutBlanks(rest_.substr(0, comma));
    }
    ended_ = comma == absl::string_view::npos;
    if (!ended_) rest_.remove_prefix(comma + 1);
    return true;
  }
  const char* wrong() const { return wrong_; }

 private:
  bool Fail(const char* what) {
    wrong_ = what;
    ended_ = true;
    return false;
  }

  absl::string_view rest_;
  bool ended_ = false;
  const char* wrong_ = nullptr;
};

class CsvReader {
 public:
  CsvReader(ByteSource& source, const CsvOptions& options)
      : source_(source), options_(options), lines_(source) {}

  absl::StatusOr<CsvTable> Read() {
    std::optional<int64_t> blank;  // number of the first blank line
    for (;;) {
      absl::StatusOr<std::optional<absl::string_view>> line = lines_.Next();
      if (!line.ok()) return line.status();
      if (!line->has_value()) break;
      if (WithoutBlanks(**line).empty()) {
        if (!blank.has_value()) blank = lines_.number();
        continue;
      }
      if (blank.has_value()) {
        return Damaged(absl::StrCat(source_.file(), ": line ", *blank),
                       "is blank, and samples follow");
      }
      absl::Status status = columns_ == 0 ? TakeFirst(**line) : TakeSample(**line);
      if (!status.ok()) return status;
    }
    if (table_.count == 0) return InvalidSpec(absl::StrCat(source_.file(), ": holds no sample"));
    return std::move(table_);
  }

 private:
  absl::Status WrongField(int64_t column, absl::string_view what) const {
    return lines_.Wrong(absl::StrCat("column ", column, " ", what));
  }

  // The header or the first sample: says how many columns there are, and which one is the label.
  absl::Status TakeFirst(absl::string_view line) {
    CsvFields fields(line);
    absl::string_view field;
    std::vector<std::string> names;
    bool is_header = false;
    while (fields.Next(field)) {
      if (columns_ > kMaxSampleFeatures) {
        return lines_.Wrong(absl::StrCat("more than ", kMaxSampleFeatures + 1, " columns"));
      }
      ++columns_;
      is_header = is_header || (!field.empty() && !LooksLikeNumber(field));
    }
    if (fields.wrong() != nullptr) return WrongField(columns_, fields.wrong());
    is_header = is_header && !LabelIsNumber(line);
    if (columns_ < 2) {
      return InvalidSpec(absl::StrCat(
          lines_.Place(), ": one column, want a label and features, separated by commas"));
    }
    if (is_header) {
      CsvFields again(line);
      while (again.Next(field)) names.push_back(absl::StrReplaceAll(field, {{"\"\"", "\""}}));
    }
    absl::Status status = FindLabel(names);
    if (!status.ok()) return status;
    table_.features = columns_ - 1;
    row_bytes_ = 4 * columns_;
    if (options_.keep) table_.rows = FloatRows(table_.features);
    scratch_.resize(static_cast<size_t>(table_.features));
    if (!is_header) return TakeSample(line);
    table_.label_name = std::move(names[label_column_]);
    names.erase(names.begin() + label_column_);
    table_.names = std::move(names);
    return absl::OkStatus();
  }

  // Whether the label is a column by its index, and the first line has a number there. Then this
  // line is a sample, in which another field may be wrong.
  bool LabelIsNumber(absl::string_view line) const {
    int64_t index = 0;
    if (!absl::SimpleAtoi(options_.label_column, &index)) return false;
    if (index == -1) index = columns_ - 1;
    CsvFields fields(line);
    absl::string_view field;
    for (int64_t column = 0; fields.Next(field); ++column) {
      if (column == index) return LooksLikeNumber(field);
    }
    return false;
  }

  absl::Status FindLabel(const std::vector<std::string>& names) {
    const std::string& wanted = options_.label_column;
    const auto wrong = [&](absl::string_view what) {
      return InvalidSpec(
          absl::StrCat(lines_.Place(), ": data.label_column is ", Excerpt(wanted), ", ", what));
    };
    if (absl::SimpleAtoi(wanted, &label_column_)) {
      if (label_column_ == -1) label_column_ = columns_ - 1;
      if (label_column_ >= 0 && label_column_ < columns_) return absl::OkStatus();
      return wrong(absl::StrCat("want -1 to ", columns_ - 1, " (", columns_, " columns)"));
    }
    if (names.empty()) return wrong("but the file has no header line with names");
    const auto named = std::count(names.begin(), names.end(), wanted);
    if (named != 1) return wrong(absl::StrCat("the header has ", named, " columns of this name"));
    label_column_ = std::find(names.begin(), names.end(), wanted) - names.begin();
    return absl::OkStatus();
  }

  absl::Status TakeSample(absl::string_view line) {
    if (options_.memory_limit_bytes / row_bytes_ <= table_.count) {
      return InvalidSpec(absl::StrCat(
          lines_.Place(), ": with this line ", table_.count + 1, " samples of ", table_.features,
          " features and a label need ", (table_.count + 1) * row_bytes_,
          " bytes of memory or more, limit ", options_.memory_limit_bytes,
          "; tables are held in memory, as 4 bytes for each number"));
    }
    float* const row = options_.keep ? table_.rows.Append() : scratch_.data();
    CsvFields fields(line);
    absl::string_view field;
    int64_t column = 0, place = 0;
    for (; fields.Next(field); ++column) {
      if (column == columns_) return Ragged(line);
      if (field.empty()) return WrongField(column, "is empty");
      if (column == label_column_) {
        absl::Status status = TakeLabel(column, field);
        if (!status.ok()) return status;
      } else if (const char* const wrong = ParseFloat(field, row[place++])) {
        return WrongField(column, absl::StrCat(Excerpt(field), " ", wrong));
      }
    }
    if (fields.wrong() != nullptr) return WrongField(column, fields.wrong());
    if (column != columns_) return Ragged(line);
    ++table_.count;
    return absl::OkStatus();
  }

  absl::Status TakeTarget(int64_t column, absl::string_view field) {
    float target = 0;
    if (const char* const wrong = ParseFloat(field, target)) {
      return WrongField(column, absl::StrCat("has the target ", Excerpt(field), ", which ", wrong));
    }
    if (options_.keep) table_.targets.push_back(target);
    return absl::OkStatus();
  }

  absl::Status TakeLabel(int64_t column, absl::string_view field) {
    if (options_.numbers) return TakeTarget(column, field);
    int64_t label = 0;
    if (const char* const wrong = ParseWhole(field, label)) {
      return WrongField(column, absl::StrCat("has the label ", Excerpt(field), ", which ", wrong,
                                             NumbersHint(/*numbers=*/false, field)));
    }
    if (label < 0 || label >= options_.num_classes) {
      return InvalidSpec(absl::StrCat(lines_.Place(), ": column ", column, " has the label ", label,
                                      ", want 0 to ", options_.num_classes - 1, " (num_classes is ",
                                      options_.num_classes, ")",
                                      NumbersHint(/*numbers=*/false, field)));
    }
    if (options_.keep) table_.labels.push_back(static_cast<int32_t>(label));
    return absl::OkStatus();
  }

  absl::Status Ragged(absl::string_view line) const {
    CsvFields fields(line);
    absl::string_view field;
    int64_t count = 0;
    while (fields.Next(field)) ++count;
    return lines_.Wrong(absl::StrCat(count, " columns, the first line has ", columns_));
  }

  ByteSource& source_;
  const CsvOptions& options_;
  TextLines lines_;
  CsvTable table_;
  int64_t columns_ = 0;  // 0: no line has been read yet
  int64_t label_column_ = 0;
  int64_t row_bytes_ = 0;  // memory for a sample
  std::vector<float> scratch_;
};

}  // namespace

absl::StatusOr<CsvTable> ReadCsv(ByteSource& source, const CsvOptions& options) {
  return CsvReader(source, options).Read();
}

}  // namespace capstan::data
