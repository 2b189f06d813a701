package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// variable is the environment variable with the number of the fault that is on, from 1. 0 is none.
const variable = "MUTANT"

// helper is a file of the package that reads the variable. %s is the name of the package.
const helper = `package %s

import (
	"os"
	"strconv"
)

var mutantNow, _ = strconv.Atoi(os.Getenv("` + variable + `"))

func mutantIsOn(number int) bool { return number == mutantNow }
`

// combined is a copy of a package that has several faults, each behind a condition. So all faults
// are compiled and linked only once.
type combined struct {
	faults []fault
	// segments contains the lines of each fault in its file, to find the faults that do not
	// compile.
	segments []segment
	// overlay is a file for the flag -overlay of go.
	overlay string
}

type segment struct {
	file        string
	first, last int
	number      int
}

// combine writes the copy to a folder.
func combine(packageFolder, work string, faults []fault) (*combined, error) {
	c := &combined{faults: faults, overlay: filepath.Join(work, "overlay.json")}
	replace := map[string]string{}
	write := func(name, text string) error {
		original, err := filepath.Abs(filepath.Join(packageFolder, name))
		replace[original] = filepath.Join(work, name)
		return errors.Join(err, os.WriteFile(filepath.Join(work, name), []byte(text), 0o600))
	}

	byFile := map[string][]int{}
	for i := range faults {
		byFile[faults[i].file] = append(byFile[faults[i].file], i)
	}

	for file, indexes := range byFile {
		if err := write(filepath.Base(file), c.text(file, indexes)); err != nil {
			return nil, err
		}
	}

	if err := write("zz_mutant.go", fmt.Sprintf(helper, packageName(faults[0].source))); err != nil {
		return nil, err
	}

	text, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	return c, errors.Join(err, os.WriteFile(c.overlay, text, 0o600))
}

func packageName(source []byte) string {
	return string(regexp.MustCompile(`(?m)^package (\w+)`).FindSubmatch(source)[1])
}

// text returns a file with faults. Each function begins with a copy of its body for each fault.
func (c *combined) text(file string, indexes []int) string {
	slices.SortFunc(indexes, func(a, b int) int { return c.faults[a].in.from - c.faults[b].in.from })
	var (
		text   strings.Builder
		source = c.faults[indexes[0]].source
		done   int
	)

	for _, i := range indexes {
		f := &c.faults[i]
		text.Write(source[done:f.in.from])
		done = f.in.from

		first := strings.Count(text.String(), "\n") + 1
		fmt.Fprintf(&text, "\nif mutantIsOn(%d) {\n%s\n", i+1, f.body())

		if !f.in.results {
			text.WriteString("return\n")
		}

		text.WriteString("}\n")
		c.segments = append(c.segments, segment{filepath.Base(file), first, strings.Count(text.String(), "\n"), i})
	}

	text.Write(source[done:])
	return text.String()
}

var place = regexp.MustCompile(`(?m)^(?:[^\s:]*/)?([^/\s:]+\.go):(\d+):`)

// rejected returns the indexes of the faults that the output of the compiler names.
func (c *combined) rejected(out []byte) map[int]bool {
	all := map[int]bool{}
	for _, match := range place.FindAllSubmatch(out, -1) {
		line, _ := strconv.Atoi(string(match[2])) // The expression takes digits only.
		for _, s := range c.segments {
			if s.file == string(match[1]) && s.first <= line && line <= s.last {
				all[s.number] = true
			}
		}
	}
	return all
}
