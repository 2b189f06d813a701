package multicluster

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// absent is a number that no list has.
const absent = 0

// known holds names: if a list lacks such a name, the object was deleted. A sender of an event
// chooses its name. A name that only an event has gives way to the name of an object that a list or
// a reconcile has seen. Lists and reconciles use it, and the lock of objects guards it.
type known struct {
	// numbers maps a name to the number of the last list that had it. The value is [absent] from
	// the end of a list that lacks the object until the reconcile that this list has requested.
	numbers map[types.NamespacedName]uint32
	// guessed contains the names that only an event has named.
	guessed map[types.NamespacedName]struct{}
}

func newKnown() known {
	return known{numbers: make(map[types.NamespacedName]uint32), guessed: make(map[types.NamespacedName]struct{})}
}

// keepName keeps a name with the number of a list, and reports false if there are too many.
func (k *known) keepName(name types.NamespacedName, number uint32, seen bool, most int) bool {
	_, isKnown := k.numbers[name]
	isFull := !isKnown && len(k.numbers) >= most
	if isFull && !seen {
		return false
	}
	if isFull && !k.evictGuess() {
		return false
	}

	k.numbers[name] = number
	switch {
	case seen:
		delete(k.guessed, name)
	case !isKnown:
		k.guessed[name] = struct{}{}
	}

	return true
}

// markListed notes that a list has a name. It adds no name.
func (k *known) markListed(name types.NamespacedName, number uint32) {
	if _, isKnown := k.numbers[name]; isKnown {
		k.numbers[name] = number
	}
}

// markAbsent notes that a list lacks a name and has requested the object.
func (k *known) markAbsent(name types.NamespacedName) { k.numbers[name] = absent }

// missingNames returns names that the list with that number lacks. The argument most bounds how
// many.
func (k *known) missingNames(number uint32, most int) (names []types.NamespacedName) {
	for name, last := range k.numbers {
		if last != absent && last < number && len(names) < most {
			names = append(names, name)
		}
	}
	return names
}

// evictGuess makes room for a name.
func (k *known) evictGuess() bool {
	for name := range k.guessed {
		k.forgetName(name)
		return true
	}
	return false
}

func (k *known) forgetName(name types.NamespacedName) {
	delete(k.numbers, name)
	delete(k.guessed, name)
}

// isName reports whether an object can have that name. Events and lists may also contain names that
// no object can have.
func isName(key types.NamespacedName) bool {
	const most = validation.DNS1123SubdomainMaxLength
	return key.Name != "" && len(key.Name) <= most && len(key.Namespace) <= most
}
