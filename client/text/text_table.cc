#include "client/text/text_table.h"

#include <algorithm>
#include <utility>

#include "client/text/job_view.h"

namespace capstan::client {

void TextTable::Add(std::vector<std::string> cells) {
  cells.resize(rows_.front().size());
  for (std::string& cell : cells) cell = cell.empty() ? "-" : Printable(cell);
  rows_.push_back(std::move(cells));
}

std::string TextTable::Text(int width) const {
  std::vector<size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
    }
    if (width > 0 && line.size() > static_cast<size_t>(width)) line.resize(width);
    out += line + "\n";
  }
  return out;
}

}  // namespace capstan::client
