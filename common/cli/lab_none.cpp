// common/cli/lab.hpp in a build without the emulator.
#include "common/attention/error.hpp"
#include "common/cli/lab.hpp"

namespace flashladder::lab {
namespace {

[[noreturn]] void no_labs() {
  throw Error("this build has no emulator and so no labs: set up again on a system with threads");
}

}  // namespace

void no_verb(const std::vector<std::string>&) {
  no_labs();
}
int list_labs() {
  no_labs();
}
int make_lab(const NewOptions&) {
  no_labs();
}
int grade_lab(const GradeOptions&) {
  no_labs();
}
int check_labs(const CheckOptions&) {
  no_labs();
}

}  // namespace flashladder::lab
