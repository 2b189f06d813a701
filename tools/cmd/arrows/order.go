package main

import (
	"fmt"
	"math/bits"
	"slices"
)

// mostTangled bounds the files of one knot, because all orders of a knot are compared.
const mostTangled = 20

// order returns the files from the top, so that as few arrows as possible point up, and the number
// of arrows that do. A file without arrows in one direction causes no arrow up. Such files are
// taken away first, again and again. The remaining files are a knot.
func (f *files) order() (fromTop []int, up int, err error) {
	var top, bottom []int
	var left []int
	for n := range f.names {
		left = append(left, n)
	}

	for {
		isLoose := func(file int) bool { return !f.usesAny(file, left) || !f.isUsedByAny(file, left) }
		n := slices.IndexFunc(left, isLoose)
		if n < 0 {
			break
		}
		file := left[n]
		if f.usesAny(file, left) {
			top = append(top, file)
		} else {
			bottom = append(bottom, file)
		}
		left = slices.Delete(left, n, n+1)
	}
	if len(left) > mostTangled {
		return nil, 0, fmt.Errorf("%d files use each other in circles, and at most %d are ordered",
			len(left), mostTangled)
	}

	knot, up := f.orderKnot(left)
	slices.Reverse(bottom)
	return slices.Concat(top, knot, bottom), up, nil
}

func (f *files) usesAny(file int, others []int) bool {
	return slices.ContainsFunc(others, func(other int) bool { return f.uses[file][other] })
}

func (f *files) isUsedByAny(file int, others []int) bool {
	return slices.ContainsFunc(others, func(other int) bool { return f.uses[other][file] })
}

// orderKnot finds the best order of each set of files. One file of the set is the top, and the
// files below are in the best order of that smaller set. The arrows up to the top come from its
// users.
func (f *files) orderKnot(knot []int) (fromTop []int, up int) {
	users := make([]uint, len(knot)) // For each file, the set of its users.
	for a, file := range knot {
		for b, other := range knot {
			if f.uses[other][file] {
				users[a] |= 1 << b
			}
		}
	}

	all := uint(1)<<len(knot) - 1
	least := make([]int, all+1)
	top := make([]int, all+1)
	for set := uint(1); set <= all; set++ {
		least[set] = -1
		for a := range knot {
			below := set &^ (1 << a)
			if below == set {
				continue
			}
			count := least[below] + bits.OnesCount(users[a]&below)
			if least[set] < 0 || count < least[set] {
				least[set] = count
				top[set] = a
			}
		}
	}

	for set := all; set != 0; set &^= 1 << top[set] {
		fromTop = append(fromTop, knot[top[set]])
	}
	return fromTop, least[all]
}
