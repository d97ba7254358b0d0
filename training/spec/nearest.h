// Guesses which name a person meant by an unknown word.
#ifndef CAPSTAN_TRAINING_SPEC_NEAREST_H_
#define CAPSTAN_TRAINING_SPEC_NEAREST_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace capstan::training::spec {

// The name at the smallest edit distance (Levenshtein 1966) from `word`, if that is at most 2 and
// less than the name's length; the first of equals. "" if no name is near, and if `word` is one of
// the names, because then something else is wrong.
std::string Nearest(absl::string_view word, const std::vector<std::string>& names);

}  // namespace capstan::training::spec

#endif  // CAPSTAN_TRAINING_SPEC_NEAREST_H_
