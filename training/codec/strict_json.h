// A JSON reader for untrusted bytes.
//
// Beyond RFC 8259 it refuses duplicate keys, nesting and sizes above the limits, and anything after
// the value. Strings are valid UTF-8 (the library's lexer checks them). Threads: pure functions.
#ifndef CAPSTAN_TRAINING_CODEC_STRICT_JSON_H_
#define CAPSTAN_TRAINING_CODEC_STRICT_JSON_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::training {

struct JsonLimits {
  size_t max_bytes = size_t{1} << 20;
  int max_depth = 8;           // arrays and objects inside each other; a bare value has depth 0
  int64_t max_values = 10000;  // values of any kind, including containers; bounds the memory
};

// DataLoss: "<file>: <what is wrong>".
absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view file, absl::string_view text,
                                               const JsonLimits& limits);

// DataLoss: `object` is not an object, lacks one of `keys` or has another key.
absl::Status CheckJsonKeys(absl::string_view file, absl::string_view what,
                           const nlohmann::json& object,
                           std::initializer_list<absl::string_view> keys);

// Reads object[key] as an integer in [0, 2^63), or as a string. The key must exist (CheckJsonKeys).
// DataLoss: another type or range.
absl::StatusOr<int64_t> JsonInt64(absl::string_view file, const nlohmann::json& object,
                                  absl::string_view key);
absl::StatusOr<std::string> JsonString(absl::string_view file, const nlohmann::json& object,
                                       absl::string_view key);

// True if `text` is well-formed UTF-8 (RFC 3629: no surrogates, no overlong forms).
bool IsUtf8(absl::string_view text);

// Appends `text`, which must be UTF-8, as a quoted JSON string.
void AppendJsonString(absl::string_view text, std::string& out);

// `text` for a message: in quotes, escaped, at most 60 bytes.
std::string Quoted(absl::string_view text);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_CODEC_STRICT_JSON_H_
