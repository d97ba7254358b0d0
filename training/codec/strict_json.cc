#include "training/codec/strict_json.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace capstan::training {
namespace {

using nlohmann::json;

absl::string_view View(const std::string& text) {
  return absl::string_view(text.data(), text.size());
}

// Builds the document and stops at the first error. The library calls it without recursion and,
// because the handler is our own, without exceptions.
class Builder : public nlohmann::json_sax<json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return Add(json(nullptr)); }
  bool boolean(bool value) override { return Add(json(value)); }
  bool number_integer(number_integer_t value) override { return Add(json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return Add(json(value)); }
  bool number_float(number_float_t value, const string_t& text) override {
    return Add(json(value));
  }
  bool string(string_t& value) override { return Add(json(std::move(value))); }
  bool binary(binary_t& value) override { return Fail("binary value"); }
  bool start_object(size_t size) override { return Open(json::object()); }
  bool start_array(size_t size) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& value) override {
    json& object = *open_.back();
    if (object.contains(value)) return Fail(absl::StrCat("duplicate key ", Quoted(View(value))));
    slot_ = &object[value];
    return true;
  }
  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception& error) override {
    return Fail(absl::StrCat("not JSON at byte ", position, ", near ", Quoted(View(token))));
  }

  const std::string& failure() const { return failure_; }
  json& root() { return root_; }

 private:
  bool Fail(std::string what) {
    failure_ = std::move(what);
    return false;
  }

  bool Add(json value) { return Place(std::move(value)) != nullptr; }

  json* Place(json value) {
    if (++values_ > limits_.max_values) {
      Fail(absl::StrCat("more than ", limits_.max_values, " JSON values"));
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    *slot_ = std::move(value);
    return slot_;
  }

  bool Open(json container) {
    if (static_cast<int>(open_.size()) >= limits_.max_depth) {
      return Fail(absl::StrCat("nested deeper than ", limits_.max_depth));
    }
    json* const placed = Place(std::move(container));
    if (placed == nullptr) return false;
    // The pointer stays valid, because nothing is added to the parent before this container is
    // closed.
    open_.push_back(placed);
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  json root_;
  std::vector<json*> open_;
  json* slot_ = nullptr;
  int64_t values_ = 0;
  std::string failure_;
};

std::string Key(absl::string_view key) { return std::string(key); }

}  // namespace

absl::StatusOr<json> ParseStrictJson(absl::string_view file, absl::string_view text,
                                     const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return absl::DataLossError(
        absl::StrCat(file, ": ", text.size(), " bytes of JSON, limit ", limits.max_bytes));
  }
  // The library skips a byte order mark, but JSON does not allow one.
  if (text.substr(0, 3) == "\xEF\xBB\xBF") {
    return absl::DataLossError(absl::StrCat(file, ": begins with a byte order mark"));
  }
  Builder builder(limits);
  if (!json::sax_parse(text.begin(), text.end(), &builder)) {
    return absl::DataLossError(absl::StrCat(file, ": ", builder.failure()));
  }
  return std::move(builder.root());
}

absl::Status CheckJsonKeys(absl::string_view file, absl::string_view what, const json& object,
                           std::initializer_list<absl::string_view> keys) {
  if (!object.is_object()) {
    return absl::DataLossError(absl::StrCat(file, ": ", what, " is not an object"));
  }
  for (const absl::string_view key : keys) {
    if (!object.contains(Key(key))) {
      return absl::DataLossError(absl::StrCat(file, ": ", what, " lacks '", key, "'"));
    }
  }
  if (object.size() == keys.size()) return absl::OkStatus();
  for (const auto& item : object.items()) {
    if (std::find(keys.begin(), keys.end(), View(item.key())) == keys.end()) {
      return absl::DataLossError(
          absl::StrCat(file, ": ", what, " has an unknown key ", Quoted(View(item.key()))));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> JsonInt64(absl::string_view file, const json& object,
                                  absl::string_view key) {
  const json& value = object[Key(key)];
  if (!value.is_number_unsigned() ||
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return absl::DataLossError(
        absl::StrCat(file, ": '", key, "' is not an integer from 0 to 2^63 - 1"));
  }
  return value.get<int64_t>();
}

absl::StatusOr<std::string> JsonString(absl::string_view file, const json& object,
                                       absl::string_view key) {
  const json& value = object[Key(key)];
  if (!value.is_string()) {
    return absl::DataLossError(absl::StrCat(file, ": '", key, "' is not a string"));
  }
  return value.get<std::string>();
}

bool IsUtf8(absl::string_view text) {
  const auto* p = reinterpret_cast<const uint8_t*>(text.data());
  const uint8_t* const end = p + text.size();
  while (p < end) {
    const uint8_t lead = *p++;
    if (lead < 0x80) continue;
    int more = 0;
    uint32_t code = 0, least = 0;
    if ((lead & 0xE0) == 0xC0) {
      more = 1, code = lead & 0x1F, least = 0x80;
    } else if ((lead & 0xF0) == 0xE0) {
      more = 2, code = lead & 0x0F, least = 0x800;
    } else if ((lead & 0xF8) == 0xF0) {
      more = 3, code = lead & 0x07, least = 0x10000;
    } else {
      return false;
    }
    if (end - p < more) return false;
    for (; more > 0; --more) {
      if ((*p & 0xC0) != 0x80) return false;
      code = (code << 6) | (*p++ & 0x3F);
    }
    if (code < least || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return false;
  }
  return true;
}

void AppendJsonString(absl::string_view text, std::string& out) {
  out.push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (static_cast<uint8_t>(c) < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<unsigned>(c));
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
}

std::string Quoted(absl::string_view text) {
  constexpr size_t kMaxBytes = 60;
  const bool cut = text.size() > kMaxBytes;
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kMaxBytes)), cut ? "..." : "", "'");
}

}  // namespace capstan::training
