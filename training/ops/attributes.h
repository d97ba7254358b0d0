// The attributes of an operator, under their ONNX names, and the schema that they are checked
// against.
#ifndef CAPSTAN_TRAINING_OPS_ATTRIBUTES_H_
#define CAPSTAN_TRAINING_OPS_ATTRIBUTES_H_

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace capstan::training {

using AttributeValue = std::variant<int64_t, double, std::string, std::vector<int64_t>>;

// One attribute of an operator. The type of `value` is the attribute's type.
struct AttributeDef {
  std::string name;
  AttributeValue value;  // the default, unless it is required
  bool required = false;
};

// Values by name. Threads: const methods may be called from many threads.
class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<const std::string, AttributeValue>> values)
      : values_(values) {}

  void Set(const std::string& name, AttributeValue value) { values_[name] = std::move(value); }
  bool Has(const std::string& name) const { return values_.count(name) > 0; }

  // The attribute must exist and have this type, because Normalize has run or the caller has set
  // it. Otherwise the process ends.
  int64_t Int(const std::string& name) const { return Get<int64_t>(name); }
  double Float(const std::string& name) const { return Get<double>(name); }
  const std::string& Text(const std::string& name) const { return Get<std::string>(name); }
  const std::vector<int64_t>& Ints(const std::string& name) const {
    return Get<std::vector<int64_t>>(name);
  }

  // Sorted by name.
  const std::map<std::string, AttributeValue>& values() const { return values_; }

  // Fills in defaults. InvalidArgument: a name that `schema` does not have, a value of another
  // type, a missing required attribute, or a number that is not finite. The message names the
  // attribute.
  absl::Status Normalize(absl::Span<const AttributeDef> schema);

 private:
  const AttributeValue& Find(const std::string& name) const;
  template <typename T>
  const T& Get(const std::string& name) const {
    return std::get<T>(Find(name));
  }

  std::map<std::string, AttributeValue> values_;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_ATTRIBUTES_H_
