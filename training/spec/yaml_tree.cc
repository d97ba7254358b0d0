#include "training/spec/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "training/codec/strict_json.h"

namespace capstan::training::spec {
namespace {

// Ends the parse from inside an event. Caught inside this file.
struct TooLarge {};

Mark ToMark(const YAML::Mark& mark) { return {mark.line + 1, mark.column + 1}; }

class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::vector<YamlError>& errors) : errors_(errors) {}

  YamlNode Take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Begin(mark, "", anchor, YamlNode::Kind::kNull);
    End();
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    errors_.push_back({ToMark(mark), "an alias ('*name') is not allowed in a job file"});
    Begin(mark, "", YAML::NullAnchor, YamlNode::Kind::kNull);
    End();
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    // The text was UTF-8, but yaml-cpp turns each of these two escapes into a single byte.
    if (!IsUtf8(value)) {
      errors_.push_back({ToMark(mark),
                         "the escapes \\_ and \\N are not allowed: write \\u00a0, "
                         "\\u0085"});
    }
    YamlNode* node = Begin(mark, tag, anchor, YamlNode::Kind::kScalar);
    if (node != nullptr) {
      node->scalar = value;
      node->quoted = tag == "!";
    }
    if (node == nullptr) TakeKey(mark, value);
    End();
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Begin(mark, tag, anchor, YamlNode::Kind::kSequence);
  }
  void OnSequenceEnd() override { End(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Begin(mark, tag, anchor, YamlNode::Kind::kMap);
  }
  void OnMapEnd() override { End(); }

 private:
  // The container that is being filled. `node` is null while a key is read.
  struct Level {
    YamlNode* node = nullptr;
    bool key_pending = false;  // kMap: a key was read, its value comes next
    bool discard = false;      // kMap: the pending value belongs to a duplicate or bad key
    std::string key;           // the pending key and its position
    Mark key_mark;
  };

  // Opens a value. Returns null if the value is the key of a map.
  YamlNode* Begin(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YamlNode::Kind kind) {
    if (++count_ > kMaxYamlNodes || levels_.size() > kMaxYamlDepth) {
      errors_.push_back(
          {ToMark(mark), absl::StrCat("the file is too large: the limits are ", kMaxYamlNodes,
                                      " values and ", kMaxYamlDepth, " levels")});
      throw TooLarge{};
    }
    if (anchor != YAML::NullAnchor) {
      errors_.push_back({ToMark(mark), "an anchor ('&name') is not allowed in a job file"});
    }
    if (!tag.empty() && tag != "?" && tag != "!") {
      errors_.push_back(
          {ToMark(mark), absl::StrCat("a tag ('", tag, "') is not allowed in a job file")});
    }
    YamlNode* node = nullptr;
    if (levels_.empty()) {
      node = &root_;
    } else {
      Level& top = levels_.back();
      if (top.node == nullptr) {
        node =
            &scratch_.emplace_back(std::make_unique<YamlNode>()).operator*();  // inside a key that
                                                                               // is not a scalar
      } else if (top.node->kind == YamlNode::Kind::kSequence) {
        node = &top.node->items.emplace_back();
      } else if (!top.key_pending) {
        if (kind == YamlNode::Kind::kScalar) {
          levels_.push_back({});
          return nullptr;
        }
        errors_.push_back({ToMark(mark), "a key must be a plain word"});
        top.key_pending = true;
        top.discard = true;
        levels_.push_back({});  // the key itself is discarded
        return nullptr;
      } else {
        top.key_pending = false;
        node =
            top.discard
                ? &scratch_.emplace_back(std::make_unique<YamlNode>()).operator*()
                : &top.node->entries.emplace_back(YamlNode::Entry{top.key, top.key_mark, {}}).value;
      }
    }
    node->kind = kind;
    node->mark = ToMark(mark);
    levels_.push_back({node});
    return node;
  }

  void TakeKey(const YAML::Mark& mark, const std::string& key) {
    Level& map = levels_[levels_.size() - 2];
    map.key_pending = true;
    map.discard = map.node->Find(key) != nullptr;
    if (map.discard) {
      errors_.push_back({ToMark(mark), absl::StrCat("duplicate key '", key, "'")});
      return;
    }
    map.key = key;
    map.key_mark = ToMark(mark);
  }

  void End() { levels_.pop_back(); }

  std::vector<YamlError>& errors_;
  YamlNode root_;
  std::vector<Level> levels_;
  std::vector<std::unique_ptr<YamlNode>> scratch_;  // discarded values
  int count_ = 0;
};

// The first line, up to `last`, that a tab indents. YAML forbids such lines, and yaml-cpp reports
// misleading errors for them. Line 0 if there is none.
YamlError FindTab(absl::string_view text, int last) {
  int line = 0;
  for (absl::string_view rest : absl::StrSplit(text, '\n')) {
    if (++line > last) break;
    const size_t begin = rest.find_first_not_of(" \t\r");
    if (begin == absl::string_view::npos || rest[begin] == '#') continue;
    const size_t tab = rest.substr(0, begin).find('\t');
    if (tab == absl::string_view::npos) continue;
    absl::string_view word = rest.substr(begin);
    word = absl::StripAsciiWhitespace(word.substr(0, word.find(':'))).substr(0, 80);
    return {{line, static_cast<int>(tab) + 1},
            absl::StrCat("there is a tab before '", word, "': YAML indents only with spaces")};
  }
  return {};
}

}  // namespace

const YamlNode* YamlNode::Find(absl::string_view key) const {
  for (const Entry& entry : entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

YamlNode* YamlNode::Find(absl::string_view key) {
  return const_cast<YamlNode*>(static_cast<const YamlNode*>(this)->Find(key));
}

YamlNode ParseYaml(absl::string_view text, std::vector<YamlError>& errors) {
  // A protobuf string must be UTF-8, and yaml-cpp passes on whatever it finds.
  if (!IsUtf8(text)) {
    int line = 1;
    for (absl::string_view part : absl::StrSplit(text, '\n')) {
      if (!IsUtf8(part)) break;
      ++line;
    }
    errors.push_back({{line, 1}, "this line is not UTF-8"});
    return {};
  }
  TreeBuilder builder(errors);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return {};
    TreeBuilder rest(errors);
    if (parser.HandleNextDocument(rest)) {
      errors.push_back({rest.Take().mark, "one document is expected, a second one begins here"});
    }
  } catch (const YAML::Exception& e) {
    YamlError tab = FindTab(text, ToMark(e.mark).line);
    if (tab.mark.line > 0) {
      errors.push_back(std::move(tab));
      return {};  // what was read before does not have the intended structure
    }
    errors.push_back({ToMark(e.mark), absl::StrCat("not YAML: ", e.msg)});
  } catch (const TooLarge&) {
    // Already reported.
  }
  return builder.Take();
}

}  // namespace capstan::training::spec
