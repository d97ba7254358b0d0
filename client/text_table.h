// Columns of text, lined up.
#ifndef CAPSTAN_CLIENT_TEXT_TABLE_H_
#define CAPSTAN_CLIENT_TEXT_TABLE_H_

#include <string>
#include <vector>

namespace capstan::client {

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> head) : rows_{std::move(head)} {}

  // As many cells as the head has; control characters become '?', an empty cell '-'.
  void Add(std::vector<std::string> cells);
  // Two spaces between columns, a line feed behind every row. `width` > 0: lines are cut to it,
  // never wrapped; 0: whole, for a pipe.
  std::string Text(int width) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_TEXT_TABLE_H_
