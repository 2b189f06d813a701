package rawjson_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/runtime-watcher/runtime-watcher/internal/rawjson"
)

func TestEqual(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name, a, b string
		want       bool
	}{
		{"same bytes", `{"a":1}`, `{"a":1}`, true},
		{"same bytes that are not JSON", `{"a"`, `{"a"`, true},
		{"white space", `{"a":[1,2]}`, " {\n\t\"a\" : [ 1 , 2 ] } ", true},
		{"order of members", `{"a":1,"b":{"c":2,"d":3}}`, `{"b":{"d":3,"c":2},"a":1}`, true},
		{"order of elements", `[1,2]`, `[2,1]`, false},
		{"another member", `{"a":1}`, `{"b":1}`, false},
		{"one more member", `{"a":1}`, `{"a":1,"b":2}`, false},
		{"one more element", `[1]`, `[1,1]`, false},
		{"absent is not null", `{}`, `{"a":null}`, false},
		{"escapes", `"\u00e4\/\n"`, `"ä/\u000a"`, true},
		{"escapes in names", `{"\u0061":1}`, `{"a":1}`, true},
		{"surrogates", `"\ud83d\ude00"`, `"😀"`, true},
		{"lower and upper case", `"a"`, `"A"`, false},
		{"composed and decomposed", `"\u00e4"`, `"a\u0308"`, false},
		{"notations of 1", `[1,1.0,1e0,10e-1,0.1E+1]`, `[1e0,1,1.0,1,1]`, true},
		{"notations of 0", `[0,-0,0.0,0e7,-0.0e-999999999999999999999]`, `[0,0,0,0,0]`, true},
		{"signs", `-1`, `1`, false},
		{"magnitude", `1`, `10`, false},
		{"beyond a float64", `12345678901234567890`, `12345678901234567891`, false},
		{"beyond a float64, another notation", `12345678901234567890`, `1234567890123456789e1`, true},
		{"exponent beyond an int64", `1e99999999999999999999`, `2e99999999999999999999`, false},
		{"number and string", `1`, `"1"`, false},
		{"true and false", `true`, `false`, false},
		{"null and false", `null`, `false`, false},
		{"array and object", `[]`, `{}`, false},
		{"reordered, then rubbish", `{"a":1,"b":2}`, `{"b":2,"a":1}x`, false},
		{"reordered, then another value", `{"a":1,"b":2} {}`, `{"b":2,"a":1}`, false},
		{"rubbish behind equal values", `1 x`, `1  x`, false},
		{"empty text", ``, ` `, false},
		{"repeated name, in doubt", `{"a":1,"a":2}`, `{"a":3,"a":2}`, false},
		{"repeated name, another value", `{"a":1,"b":0,"b":2}`, `{"b":2,"a":2}`, false},
	}

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			checkLaws(t, []byte(tt.a), []byte(tt.b))

			if got := rawjson.Equal([]byte(tt.a), []byte(tt.b)); got != tt.want {
				t.Errorf("Equal(%s, %s) = %v, want %v", tt.a, tt.b, got, tt.want)
			}
		})
	}
}

// firstDifferences are texts of which the first bytes that differ are in a name, a string or a
// number.
func firstDifferences() []struct{ a, b string } {
	return []struct{ a, b string }{
		{`{"a":1.0,"b":2}`, `{"a":1.00,"b":2}`},
		{`{"a":10,"b":2}`, `{"a":1e1,"b":2}`},
		{`[12]`, `[1e1]`},
		{`[1e05]`, `[1e5]`},
		{`[0e1]`, `[0e2]`},
		{`{"a":1,"b":2}`, `{"a":12,"b":2}`},
		{`{"a":"x","b":2}`, `{"a":"y","b":2}`},
		{`{"a":"\"x\\","b":2}`, `{"a":"\"y\\","b":2}`},
		{`{"a":"\\","b":"x"}`, `{"a":"\\","b":"y"}`},
		{`{"a":"\u00e4"}`, `{"a":"\u00E4"}`},
		{`{"a":"\n"}`, `{"a":"\u000a"}`},
		{`{"a":1,"b":2}`, `{"b":2,"a":1}`},
		{`{"a" :1,"b":2}`, `{"b" :2,"a":1}`},
		{`{"k\"1":1,"k\"2":2}`, `{"k\"2":2,"k\"1":1}`},
		{`["a","b"]`, `["b","a"]`},
		{`[true,"a"]`, `[tru,"a"]`},
		{`[1,"a"]`, `[1 ,"a"]`},
		{`["a" ]`, `["a"]`},
		{`[-1]`, `[-2]`},
		{`"`, `"a`},
		{`1"x`, `1"y`},
	}
}

func TestFirstDifferences(t *testing.T) {
	t.Parallel()

	for _, tt := range firstDifferences() {
		checkLaws(t, []byte(tt.a), []byte(tt.b))
	}
}

func FuzzEqual(f *testing.F) {
	seeds := texts()
	for i, a := range seeds {
		f.Add([]byte(a), []byte(seeds[(i+1)%len(seeds)]))
		f.Add([]byte(a), []byte(" "+a))
	}

	f.Add([]byte(`{"a":1,"b":[1.0,"\u0061"]}`), []byte(`{"b":[1,"a"],"a":10e-1}`))

	for _, tt := range firstDifferences() {
		f.Add([]byte(tt.a), []byte(tt.b))
	}

	f.Fuzz(func(t *testing.T, a, b []byte) { checkLaws(t, a, b) })
}

// checkLaws fails t unless Equal is reflexive and symmetric, and agrees with a comparison of
// decoded values.
func checkLaws(t *testing.T, a, b []byte) {
	t.Helper()

	if !rawjson.Equal(a, bytes.Clone(a)) {
		t.Fatalf("%q is not equal to itself", a)
	}

	got := rawjson.Equal(a, b)
	if rawjson.Equal(b, a) != got {
		t.Fatalf("Equal(%q, %q) = %v, and the other way round not", a, b, got)
	}

	x, okX := decode(a)
	y, okY := decode(b)
	want := okX && okY && sameValues(x, y)

	switch {
	case bytes.Equal(a, b) || want == got:
	case huge(x) || huge(y):
	case got:
		t.Fatalf("%q and %q count as equal, but mean something else", a, b)
	case !repeats(a) && !repeats(b):
		t.Fatalf("%q and %q count as different, but mean the same", a, b)
	}
}

func decode(text []byte) (value any, ok bool) {
	if !json.Valid(text) {
		return nil, false
	}

	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()

	return value, decoder.Decode(&value) == nil
}

func sameValues(x, y any) bool {
	switch a := x.(type) {
	case map[string]any:
		b, ok := y.(map[string]any)

		return ok && maps.EqualFunc(a, b, sameValues)
	case []any:
		b, ok := y.([]any)

		return ok && slices.EqualFunc(a, b, sameValues)
	case json.Number:
		b, ok := y.(json.Number)

		return ok && !huge(a) && !huge(b) && exact(a).Cmp(exact(b)) == 0
	default:
		return x == y
	}
}

// huge reports whether a value has a number with an exponent that is too large to write it out.
func huge(value any) bool {
	switch v := value.(type) {
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(v)), huge)
	case []any:
		return slices.ContainsFunc(v, huge)
	case json.Number:
		mantissa, power, _ := strings.Cut(strings.ToLower(v.String()), "e")
		e, err := strconv.Atoi(cmp.Or(power, "0"))

		return strings.ContainsAny(mantissa, "123456789") && (err != nil || max(e, -e) > 1000)
	default:
		return false
	}
}

// exact returns the value of a number that is not huge.
func exact(n json.Number) *big.Rat {
	mantissa, _, _ := strings.Cut(strings.ToLower(n.String()), "e")
	if !strings.ContainsAny(mantissa, "123456789") {
		return new(big.Rat)
	}

	rat, _ := new(big.Rat).SetString(n.String())

	return rat
}

// repeats reports whether an object repeats a name: there, Equal may be in doubt.
func repeats(text []byte) bool {
	r := rawjson.NewReader(text)

	switch first := bytes.TrimLeft(text, " \t\r\n")[0]; first {
	case '{':
		seen, found := map[string]bool{}, false
		_ = r.Object(func(name []byte) error {
			raw, err := r.Skip()
			found = found || seen[string(name)] || repeats(raw)
			seen[string(name)] = true

			return err
		})

		return found
	case '[':
		var elements []json.RawMessage

		return json.Unmarshal(text, &elements) != nil ||
			slices.ContainsFunc(elements, func(e json.RawMessage) bool { return repeats(e) })
	default:
		return false
	}
}

// Every way to write a value is equal to every other, and to none of another value.
func TestEqualOfGeneratedValues(t *testing.T) {
	t.Parallel()

	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 0))
		value := generate(random, 4)
		a, b := write(random, value), write(random, value)

		if !rawjson.Equal([]byte(a), []byte(b)) {
			t.Fatalf("seed %d: different, but should be equal:\n%s\n%s", seed, a, b)
		}

		checkLaws(t, []byte(a), []byte(b))

		other := write(random, alter(random, value))
		if rawjson.Equal([]byte(a), []byte(other)) {
			t.Fatalf("seed %d: equal, but should be different:\n%s\n%s", seed, a, other)
		}
	}
}

func generate(random *rand.Rand, depth int) any {
	kind := random.IntN(8)
	if depth == 0 {
		kind %= 4
	}

	switch kind {
	case 0:
		return nil
	case 1:
		return random.IntN(2) == 0
	case 2:
		return random.IntN(2_000_000) - 1_000_000
	case 3:
		return text(random)
	case 4, 5:
		array := make([]any, random.IntN(4))
		for i := range array {
			array[i] = generate(random, depth-1)
		}

		return array
	default:
		object := map[string]any{}
		for range random.IntN(5) {
			object[text(random)] = generate(random, depth-1)
		}

		return object
	}
}

func text(random *rand.Rand) string {
	letters := []rune("ab\"\\/\n\x01äß€😀")
	picked := make([]rune, random.IntN(5))

	for i := range picked {
		picked[i] = letters[random.IntN(len(letters))]
	}

	return string(picked)
}

// alter changes the value in one place.
func alter(random *rand.Rand, value any) any {
	switch v := value.(type) {
	case []any:
		if len(v) == 0 {
			return []any{nil}
		}

		v = slices.Clone(v)
		i := random.IntN(len(v))
		v[i] = alter(random, v[i])

		return v
	case map[string]any:
		v = maps.Clone(v)
		for name := range v {
			v[name] = alter(random, v[name])

			return v
		}

		return map[string]any{"": nil}
	case int:
		return v + 1
	case string:
		return v + "x"
	case bool:
		return !v
	default:
		return false
	}
}

// write picks one of the many notations of a value.
func write(random *rand.Rand, value any) string {
	space := func() string { return []string{"", " ", "\n\t"}[random.IntN(3)] }

	switch v := value.(type) {
	case []any:
		elements := make([]string, len(v))
		for i := range v {
			elements[i] = write(random, v[i])
		}

		return space() + "[" + strings.Join(elements, ",") + space() + "]"
	case map[string]any:
		members := make([]string, 0, len(v))
		for name, member := range v { // In another order each time.
			members = append(members, space()+quote(random, name)+space()+":"+write(random, member))
		}

		return space() + "{" + strings.Join(members, ",") + space() + "}"
	case int:
		return space() + number(random, v)
	case string:
		return space() + quote(random, v)
	default:
		return space() + map[any]string{nil: "null", true: "true", false: "false"}[v] + space()
	}
}

func number(random *rand.Rand, n int) string {
	return fmt.Sprintf([]string{"%d", "%d.0", "%de0", "%d00E-2", "%d0000.000e-4"}[random.IntN(5)], n)
}

func quote(random *rand.Rand, s string) string {
	var b strings.Builder
	b.WriteByte('"')

	for _, r := range s {
		switch must := r < 0x20 || r == '"' || r == '\\'; {
		case must || r < utf8.RuneSelf && random.IntN(2) == 0:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}

	b.WriteByte('"')

	return b.String()
}

// Foreign bytes must not make a comparison slow. Each text has 1 MiB, and a quadratic comparison
// takes minutes. Where it would have to decode that much, the answer is false.
func TestEqualIsLinear(t *testing.T) {
	t.Parallel()

	const mebibyte = 1 << 20

	deep := func(inner string) string {
		const name = `{"aa":`

		return strings.Repeat(name, maxDepth-1) + inner + strings.Repeat("}", maxDepth-1)
	}
	wide := func(step int) string {
		var b strings.Builder
		for i := 0; b.Len() < mebibyte; i++ {
			fmt.Fprintf(&b, `,"%d":{"a":1}`, i*step)
		}

		return "{" + b.String()[1:] + "}"
	}
	levels := func(before, after string) string { // Reordered at every level.
		return strings.Repeat(`{`+before+`"z":`, maxDepth-1) + "{}" + strings.Repeat(after+`}`, maxDepth-1)
	}
	filler := `"filler":"` + strings.Repeat("x", mebibyte/maxDepth) + `"`

	tests := map[string]struct {
		a, b string
		want bool
	}{
		"too deep":               {strings.Repeat("[", mebibyte), strings.Repeat("[", mebibyte-1) + "{", false},
		"deep, inner reordered":  {deep(`{"a":1,"b":2}`), deep(`{"b":2,"a":1}`), true},
		"deep, reordered always": {levels(filler+",", ""), levels("", ","+filler), false},
		"wide, first other":      {wide(1), wide(2), false},
		"wide, last first":       {`{"x":0,` + wide(1)[1:], strings.TrimSuffix(wide(1), "}") + `,"x":0}`, false},
		"long numbers":           {strings.Repeat("1", mebibyte) + ".0", strings.Repeat("1", mebibyte), false},
		"long strings": {
			`"` + strings.Repeat(`\u0061`, mebibyte/6) + `"`, `"` + strings.Repeat("a", mebibyte/6) + `"`, false,
		},
		"many repeated names": {`{"b":0` + strings.Repeat(`,"a":1`, mebibyte/6) + `}`, `{"a":1,"b":0}`, false},
	}

	for name, tt := range tests {
		start := time.Now()
		got := rawjson.Equal([]byte(tt.a), []byte(tt.b))

		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("%s: took %v", name, took)
		}

		if got != tt.want {
			t.Errorf("%s: Equal = %v, want %v", name, got, tt.want)
		}
	}
}

// Foreign bytes must not become much memory: the bytes of both texts are in memory already.
func TestEqualBoundsItsMemory(t *testing.T) {
	const (
		size = 4 << 20
		most = 16 << 20
	)

	fill := func(text string) string { return strings.Repeat(text, size/len(text)) }
	list := `[` + fill(`{},`) + `0]`

	for name, texts := range map[string][2]string{
		"reordered":       {`{"a":` + list + `,"b":1}`, `{"b":1,"a":` + list + `}`},
		"other names":     {`{` + fill(`"a":0,`) + `"a":0}`, `{` + fill(`"b":0,`) + `"b":0}`},
		"other notation":  {fill("1") + ".0", fill("1")},
		"escaped":         {`"` + fill("a") + `"`, `"` + fill(`\u0061`) + `"`},
		"reordered inner": {`[` + fill("0,") + `{"a":1,"b":2}]`, `[` + fill("0,") + `{"b":2,"a":1}]`},
	} {
		if got := allocated(func() { rawjson.Equal([]byte(texts[0]), []byte(texts[1])) }); got > most {
			t.Errorf("%s: Equal allocates %d bytes, want at most %d", name, got, most)
		}
	}
}

// allocated returns how many bytes work allocates, freed ones included.
func allocated(work func()) uint64 {
	var before, after runtime.MemStats

	runtime.ReadMemStats(&before)
	work()
	runtime.ReadMemStats(&after)

	return after.TotalAlloc - before.TotalAlloc
}

func TestEqualOrderCostsNoMemory(t *testing.T) {
	a := []byte(bigObject(1000, "old"))
	b := []byte(bigObject(1000, "new"))
	spaced := append([]byte(" "), a...)

	for name, other := range map[string][]byte{"same": bytes.Clone(a), "changed": b, "spaced": spaced} {
		allocs := testing.AllocsPerRun(10, func() { rawjson.Equal(a, other) })
		if allocs > 4 {
			t.Errorf("%s: %v allocations, want none for each member", name, allocs)
		}
	}
}

func bigObject(members int, last string) string {
	var b strings.Builder
	for i := range members {
		fmt.Fprintf(&b, `"member-%d":{"name":"x","values":[1,2,3]},`, i)
	}

	return "{" + b.String() + `"last":"` + last + `"}`
}

func BenchmarkEqual(b *testing.B) {
	const members = 25_000 // 1 MiB

	object := []byte(bigObject(members, "old"))
	for name, other := range map[string][]byte{
		"same":      bytes.Clone(object),
		"changed":   []byte(bigObject(members, "new")),
		"spaced":    append([]byte(" "), object...),
		"reordered": []byte(`{"last":"old",` + strings.TrimSuffix(bigObject(members, "old")[1:], `,"last":"old"}`) + "}"),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(object)))
			b.ReportAllocs()

			for b.Loop() {
				rawjson.Equal(object, other)
			}
		})
	}
}
