// Text in aligned columns.
#ifndef CAPSTAN_CLIENT_TEXT_TEXT_TABLE_H_
#define CAPSTAN_CLIENT_TEXT_TEXT_TABLE_H_

#include <string>
#include <vector>

namespace capstan::client {

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> head) : rows_{std::move(head)} {}

  // Takes as many cells as the head has. Control characters become '?', an empty cell '-'.
  void Add(std::vector<std::string> cells);
  // Puts two spaces between columns and a line feed after every row. `width` > 0: lines are cut to
  // it, never wrapped. 0: lines are not cut, for a pipe.
  std::string Text(int width) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_TEXT_TEXT_TABLE_H_
