// What is wrong with a configuration file, in words for somebody who edits it.
//
// Threading:  one thread.
#pragma once

#include <string>
#include <string_view>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>

namespace cairn {

// Keeps the first problem that the parser finds: later ones mostly follow from it.
class ConfigError : public google::protobuf::io::ErrorCollector {
 public:
  // Of a file that holds `text`. Borrows both.
  ConfigError(const google::protobuf::Descriptor& keys, std::string_view text)
      : keys_(keys), text_(text) {}

  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override;
  void AddWarning(int line, google::protobuf::io::ColumnNumber column,
                  const std::string& message) override {
    AddError(line, column, message);
  }

  // "LINE:COLUMN: ..."
  const std::string& what() const { return what_; }

 private:
  const google::protobuf::Descriptor& keys_;
  const std::string_view text_;
  std::string what_;
};

}  // namespace cairn
