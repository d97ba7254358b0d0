// What a person may have meant who typed a word that is unknown.
#ifndef CAPSTAN_TRAINING_SPEC_NEAREST_H_
#define CAPSTAN_TRAINING_SPEC_NEAREST_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace capstan::training::spec {

// The name at the smallest edit distance (Levenshtein 1966) from `word`, if that is at most 2 and
// less than the name's length; the first of equals. "" where none is near, and where `word` is one
// of them: what is wrong with it is something else.
std::string Nearest(absl::string_view word, const std::vector<std::string>& names);

}  // namespace capstan::training::spec

#endif  // CAPSTAN_TRAINING_SPEC_NEAREST_H_
