#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.hpp"

namespace flashladder {

/// The closed forms of a pass, all of them or what changed since the stage before. `Form` has a `counter`.
template <class Form>
struct Forms {
  bool as_before = false;                      ///< The stage before's hold too, but for what stands here.
  std::vector<Form> forms = {};                ///< One for each counter.
  std::vector<std::string_view> dropped = {};  ///< Counters of the stage before that are claimed no more.
  void (*change)(Form& form) = nullptr;  ///< What becomes of each form of the stage before; null: it stays.

  /// The form of a counter; nullptr where it has none.
  const Form* find(std::string_view counter) const {
    const auto found = std::ranges::find(forms, counter, &Form::counter);
    return found == forms.end() ? nullptr : &*found;
  }

  /// All forms, where these are what changed since `before`: in the order of `before`, and what is new in
  /// front of what follows it here. Throws Error where something is dropped that is not there.
  Forms after(const Forms& before) const {
    std::vector<Form> all = before.forms;
    for (const std::string_view counter : dropped) {
      if (std::erase_if(all, [&](const Form& form) { return form.counter == counter; }) == 0)
        throw Error("a claim drops " + std::string(counter) + ", which the stage before does not claim");
    }
    if (change != nullptr) std::ranges::for_each(all, change);
    auto place = all.end();
    for (auto form = forms.rbegin(); form != forms.rend(); ++form) {
      if (const auto found = std::ranges::find(all, form->counter, &Form::counter); found != all.end()) {
        *found = *form;
        place = found;
      } else {
        place = all.insert(place, *form);
      }
    }
    return {.forms = all};
  }
};

}  // namespace flashladder
