// Values of attributes in a job file.
#ifndef CAPSTAN_TRAINING_SPEC_YAML_ATTRIBUTE_H_
#define CAPSTAN_TRAINING_SPEC_YAML_ATTRIBUTE_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "training/spec/yaml_tree.h"

namespace capstan::training::spec {

bool IsTruth(absl::string_view text);

// Whether the value is a whole number that fits.
bool IsWhole(const YamlNode& node, int64_t& value);

// Sets the value of `attribute`. Judges by the form alone (keys.h). False: the value is of no such
// form, and `attribute` is undefined.
bool ReadAttribute(const YamlNode& node, job::v1::Attribute& attribute);

// "'12'", "a list", "nothing": what stands in a job file, for messages.
std::string Found(const YamlNode& node);

}  // namespace capstan::training::spec

#endif  // CAPSTAN_TRAINING_SPEC_YAML_ATTRIBUTE_H_
