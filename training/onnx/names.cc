#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "training/onnx/importer.h"

namespace capstan::training::onnx {
namespace {

// Room for the number that makes a name unique.
constexpr size_t kMaxStemBytes = kMaxNodeNameBytes - 8;

// The name with characters that a node name may have; empty if there is none.
std::string MadeValid(absl::string_view name) {
  while (absl::ConsumePrefix(&name, "/")) {
  }
  std::string valid(name.substr(0, kMaxStemBytes));
  for (char& c : valid) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && !absl::StrContains("_./-", c)) {
      c = '_';
    }
  }
  return valid;
}

// PyTorch names the operator of module fc "/fc/Gemm".
std::string StemOf(const ImportedNode& node) {
  const std::string name = MadeValid(node.file_name);
  absl::string_view module = name;
  if (absl::StartsWith(node.file_name, "/")) {
    const size_t slash = module.rfind('/');
    // The operator may have another name here, as MatMul becomes Gemm.
    const bool operator_last = slash != absl::string_view::npos && slash + 1 < module.size() &&
                               absl::ascii_isupper(static_cast<unsigned char>(module[slash + 1])) &&
                               std::none_of(module.begin() + static_cast<std::ptrdiff_t>(slash) + 1,
                                            module.end(), [](char c) { return c == '_'; });
    if (operator_last) module = module.substr(0, slash);
  }
  return std::string(module);
}

class UniqueNames {
 public:
  // `stem`, or with a number if the name is taken or `numbered`.
  std::string Take(const std::string& stem, bool numbered) {
    int& last = last_[stem];
    std::string name = stem;
    if (numbered) {
      do {
        name = absl::StrCat(stem, ++last);
      } while (taken_.contains(name));
    } else {
      last = std::max(last, 1);
      while (taken_.contains(name)) name = absl::StrCat(stem, "_", ++last);
    }
    taken_.insert(name);
    return name;
  }

 private:
  absl::flat_hash_set<std::string> taken_;
  absl::flat_hash_map<std::string, int> last_;  // by stem: the last number
};

}  // namespace

std::string ModuleOf(absl::string_view tensor, absl::string_view suffix) {
  if (!absl::ConsumeSuffix(&tensor, suffix)) return "";
  return MadeValid(tensor);
}

std::vector<std::string> NodeNames(const std::vector<ImportedNode>& nodes) {
  std::vector<std::string> names(nodes.size());
  UniqueNames unique;
  // A module's name comes before all others, since the names of parameters follow from it.
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i].module.empty()) names[i] = unique.Take(nodes[i].module, /*numbered=*/false);
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!names[i].empty()) continue;
    const std::string stem = StemOf(nodes[i]);
    names[i] = stem.empty() ? unique.Take(absl::AsciiStrToLower(nodes[i].op.name), true)
                            : unique.Take(stem, false);
  }
  return names;
}

}  // namespace capstan::training::onnx
