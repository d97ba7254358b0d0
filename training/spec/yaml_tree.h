// A YAML document as a tree that remembers the position of every value.
//
// Stricter than YAML: anchors, aliases, tags and duplicate keys are refused, keys are plain
// strings, and there is one document. The packaged yaml-cpp silently keeps duplicate keys and
// follows aliases, even in a circle. So its parser feeds our own event handler, and its own node
// tree is not used.
#ifndef CAPSTAN_TRAINING_SPEC_YAML_TREE_H_
#define CAPSTAN_TRAINING_SPEC_YAML_TREE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace capstan::training::spec {

// Line and column, both from 1; 0 if a value did not come from the file.
struct Mark {
  int line = 0;
  int column = 0;
};

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  Kind kind = Kind::kNull;
  Mark mark;
  bool quoted = false;  // kScalar: written in quotes, so never a number or a bool
  std::string scalar;
  std::vector<YamlNode> items;  // kSequence
  struct Entry;
  std::vector<Entry> entries;  // kMap, in the order of the file

  // The entry of that name, or null.
  const YamlNode* Find(absl::string_view key) const;
  YamlNode* Find(absl::string_view key);
};

struct YamlNode::Entry {
  std::string key;
  Mark mark;  // of the key
  YamlNode value;
};

struct YamlError {
  Mark mark;
  std::string message;
};

// Parses one document in UTF-8. On a syntax error, or on more than `kMaxYamlNodes` values or
// `kMaxYamlDepth` levels, `errors` gets the error. The tree then holds what was read before it,
// without a key whose value was not read. The result is a null node in three cases: the text is
// empty, it is not UTF-8, or a tab indents a line up to the error. In the last case the error names
// the tab.
inline constexpr int kMaxYamlNodes = 20000;
inline constexpr int kMaxYamlDepth = 32;
YamlNode ParseYaml(absl::string_view text, std::vector<YamlError>& errors);

}  // namespace capstan::training::spec

#endif  // CAPSTAN_TRAINING_SPEC_YAML_TREE_H_
