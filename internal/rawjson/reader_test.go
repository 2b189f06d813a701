package rawjson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/internal/rawjson"
)

// maxDepth is how deep encoding/json lets values nest.
const maxDepth = 10000

// texts are seeds, JSON and not.
func texts() []string {
	return []string{
		``, ` `, `null`, `nul`, `nulll`, `true`, `tru`, `false`, `truefalse`, `0`, `-0`, `-`, `00`, `01`, `1.`, `.1`,
		`1.5`, `1e`, `1e5`, `1E+05`, `1e-`, `1.5e-10`, `+1`, `NaN`, `0x1`, `1 2`, `""`, `"`, `"a`, `"a\"`,
		`"\u00e4"`, `"\u00g0"`, `"\u00"`, `"\x"`, `"\ud83d\ude00"`, `"\ud83d"`, `"\ude00\ud83d"`, "\"a\nb\"",
		"\"a\x00b\"", "\"a\x7fb\"", "\"a\xffb\"", "\"a\xff\\u0041\"", `"/\/"`, `[]`, `[ ]`, `[1]`, `[1,]`, `[,1]`,
		`[1 2]`, `[1,2`, `[`, `]`, `[[[]]]`, `[1}`, `{}`, `{ }`, `{"a":1}`, `{"a":1,}`, `{,}`, `{"a"}`, `{"a":}`,
		`{"a" 1}`, `{a:1}`, `{1:1}`, `{"a":1 "b":2}`, `{"a":1,"a":2}`, `{"a":{"b":[null,true,"x",-1.5e3]}}`,
		"\t{ \"a\" :\r\n[ 1 , 2 ] } ", `{"\u0061":1,"a":2}`, "\xef\xbb\xbf{}", "{}\x00", `{"a":1}}`, `"a":1`, `//`,
		`{} //`,
		strings.Repeat("[", 50) + strings.Repeat("]", 50), strings.Repeat(`{"a":`, 20) + "1" + strings.Repeat("}", 20),
	}
}

func TestReaderAcceptsWhatEncodingJSONAccepts(t *testing.T) {
	t.Parallel()
	for _, text := range append(texts(), nested(maxDepth-1), nested(maxDepth), nested(maxDepth+1)) {
		checkSkip(t, []byte(text))
		checkTree(t, []byte(text))
	}
}

// A reader takes eight bytes of a string at once.
func TestEachByteAtEachPlaceOfAString(t *testing.T) {
	t.Parallel()
	for place := range 8 {
		for c := range 256 {
			for _, behind := range []byte{'a', '"', '\\', 0x1f, ' ', '!', 0x80, 0xff} {
				text := bytes.Repeat([]byte{behind}, 16)
				copy(text, `"aaaaaaa`[:place+1])
				text[place+1] = byte(c)
				checkSkip(t, append(text, '"'))
			}
		}
	}
}

func nested(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }

func FuzzReader(f *testing.F) {
	for _, text := range texts() {
		f.Add([]byte(text))
	}

	f.Fuzz(func(t *testing.T, text []byte) {
		checkSkip(t, text)
		checkTree(t, text)
		checkErrorsStay(t, text)
	})
}

// checkSkip fails t unless reading one value and the end succeeds exactly when encoding/json calls
// the text valid.
func checkSkip(t *testing.T, text []byte) {
	t.Helper()

	r := rawjson.NewReader(text)
	raw, err := r.Skip()
	if err == nil {
		err = r.End()
	}
	if valid := json.Valid(text); valid != (err == nil) {
		t.Fatalf("Skip and End of %.100q = %v, but Valid = %v", text, err, valid)
	}
	if err != nil {
		if !errors.Is(err, rawjson.ErrSyntax) {
			t.Fatalf("%.100q: error %v is not ErrSyntax", text, err)
		}
		return
	}

	if want := bytes.Trim(text, " \t\r\n"); !bytes.Equal(raw, want) {
		t.Fatalf("Skip of %.100q = %.100q, want %.100q", text, raw, want)
	}
}

// checkTree fails t unless Object, Text and Bool read the same values as encoding/json.
func checkTree(t *testing.T, text []byte) {
	t.Helper()

	var want any
	if len(text) > 4096 || json.Unmarshal(text, &want) != nil { // tree reads each level again.
		return
	}

	got, err := tree(text)
	if err != nil {
		t.Fatalf("%.100q: %v", text, err)
	}
	if !reflect.DeepEqual(got, want) { // cmp.Diff takes exponential time for deep values.
		t.Fatalf("%.100q is read as %v, want %v", text, got, want)
	}
}

func tree(text []byte) (value any, err error) {
	r := rawjson.NewReader(text)
	switch first := bytes.TrimLeft(text, " \t\r\n")[0]; first {
	case '{':
		members := map[string]any{}
		err = r.Object(func(name []byte) error {
			raw, err := r.Skip()
			if err != nil {
				return err
			}

			members[string(name)], err = tree(raw)
			return err
		})

		value = members
	case '"':
		value, err = r.Text()
	case 't', 'f':
		value, err = r.Bool()
	default: // Numbers, arrays and null have no method that reads their values.
		var raw []byte
		if raw, err = r.Skip(); err == nil {
			err = json.Unmarshal(raw, &value)
		}
	}
	return value, errors.Join(err, r.End())
}

// checkErrorsStay fails t when a reader that failed ever succeeds again.
func checkErrorsStay(t *testing.T, text []byte) {
	t.Helper()
	for name, read := range methods() {
		r := rawjson.NewReader(text)
		first := read(r)
		if first == nil {
			continue
		}

		for again, read := range methods() {
			if err := read(r); !errors.Is(err, first) {
				t.Fatalf("%.100q: %s = %v after %s = %v", text, again, err, name, first)
			}
		}

		if r.Null() {
			t.Fatalf("%.100q: Null after %s = %v", text, name, first)
		}
	}
}

func methods() map[string]func(r *rawjson.Reader) error {
	return map[string]func(r *rawjson.Reader) error{
		"Skip": func(r *rawjson.Reader) error { return second(r.Skip()) },
		"Text": func(r *rawjson.Reader) error { return second(r.Text()) },
		"Bool": func(r *rawjson.Reader) error { return second(r.Bool()) },
		"End":  func(r *rawjson.Reader) error { return r.End() },
		"Object": func(r *rawjson.Reader) error {
			return r.Object(func([]byte) error { return second(r.Skip()) })
		},
	}
}

func second[T any](_ T, err error) error { return err }

func TestReaderReadsOneValueAfterTheOther(t *testing.T) {
	t.Parallel()

	r := rawjson.NewReader([]byte(`{"text":"\u00e4","yes":true,"no":false,"gone":null,"rest":[1, 2]} `))
	got := map[string]any{}
	err := r.Object(func(member []byte) (err error) {
		switch name := string(member); {
		case r.Null():
			got[name] = nil
		case name == "text":
			got[name], err = r.Text()
		case name == "rest":
			var raw []byte
			raw, err = r.Skip()
			got[name] = string(raw)
		default:
			got[name], err = r.Bool()
		}
		return err
	})
	if err := errors.Join(err, r.End()); err != nil {
		t.Fatal(err)
	}

	want := map[string]any{"text": "ä", "yes": true, "no": false, "gone": nil, "rest": "[1, 2]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNullStandsForTheZeroValue(t *testing.T) {
	t.Parallel()
	for name, read := range methods() {
		if name == "End" {
			continue
		}

		r := rawjson.NewReader([]byte(" null "))
		if err := errors.Join(read(r), r.End()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestObjectReturnsTheErrorOfItsMember(t *testing.T) {
	t.Parallel()

	mine := errors.New("mine")
	r := rawjson.NewReader([]byte(`{"a":1}`))
	if err := r.Object(func([]byte) error { return mine }); err != mine { //nolint:errorlint // It must be unwrapped.
		t.Errorf("Object = %v, want %v", err, mine)
	}
}

// An error says which text was expected, and at which byte.
func TestErrorsNameThePlace(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"a":x}`: "invalid JSON: want a value at byte 5",
		`{"a":1`:  "invalid JSON: want ',' or '}', but the text ends at byte 6",
		`{a`:      "invalid JSON: want a string at byte 1",
		`[1]]`:    "invalid JSON: want the end of the text at byte 3",
	} {
		r := rawjson.NewReader([]byte(text))
		_, _ = r.Skip()
		if err := r.End(); err == nil || err.Error() != want {
			t.Errorf("%s: error %q, want %q", text, err, want)
		}
	}
}

// A large string is skipped, and not read.
func TestStringsAreBounded(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]bool{4 << 10: true, 4<<10 + 1: false} {
		text := `"` + strings.Repeat("a", size-2) + `"`
		if _, err := rawjson.NewReader([]byte(text)).Text(); (err == nil) != want {
			t.Errorf("Text of %d bytes = %v", size, err)
		}

		object := rawjson.NewReader([]byte("{" + text + ":0}"))
		if err := object.Object(func([]byte) error { return second(object.Skip()) }); (err == nil) != want {
			t.Errorf("Object with a name of %d bytes = %v", size, err)
		}

		checkSkip(t, []byte(text))
	}
}

// Any text but a valid array has the length 0.
func TestLen(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		`[]`: 0, `[null]`: 1, ` [1, [2, 3], {"a":[4]}]`: 3, `{}`: 0, `null`: 0, `"[1]"`: 0, ``: 0, `[1,2`: 0, `7`: 0,
	} {
		if got := rawjson.Len([]byte(text)); got != want {
			t.Errorf("Len(%s) = %d, want %d", text, got, want)
		}
	}
}
