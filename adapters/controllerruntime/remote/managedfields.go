package remote

// fieldsFilter removes the managed fields of the items of a list while its JSON is read:
// items[].metadata.managedFields becomes null. One ordinary Deployment has 632 values there, more
// than in its spec, and a list is read for names and specs. A single object keeps its fields.
//
// The filter follows the path of the current value no deeper than that. It changes nothing else. A
// part that it does not recognise, such as a key with escaped characters, stays and is weighed.
type fieldsFilter struct {
	depth   int // of the current object or list
	matched int // how many of the current objects and lists are those of the path, from the root

	// The last key of the innermost object of the path, or the part of it that was read.
	key      []byte
	wantsKey bool // the next string of the current object is a key
	isKey    bool // the current string is one

	text    bool // inside a string
	escaped bool // by a backslash
	skipped bool // inside managed fields
}

// The objects and lists of the path: the list, its items, an item, and its metadata.
const (
	inList = iota + 1
	inItems
	inItem
	inMetadata
)

const (
	fieldsKey  = "managedFields"
	nullFields = ":null"
)

// appendTo appends the parts of the text that stay.
func (f *fieldsFilter) appendTo(kept, text []byte) []byte {
	for _, c := range text {
		skips := f.skipped
		if f.text {
			f.readText(c)
		} else {
			f.readToken(c)
		}

		switch {
		case !f.skipped: // Also the comma or brace behind managed fields.
			kept = append(kept, c)
		case !skips: // It is the colon before them.
			kept = append(kept, nullFields...)
		}
	}

	return kept
}

func (f *fieldsFilter) readText(c byte) {
	switch {
	case f.escaped:
		f.escaped = false
	case c == '\\':
		f.escaped = true
	case c == '"':
		f.text = false
		f.isKey = false
		return
	}

	if f.isKey && len(f.key) <= len(fieldsKey) {
		f.key = append(f.key, c)
	}
}

func (f *fieldsFilter) readToken(c byte) {
	switch c {
	case '"':
		f.text = true
		f.isKey = f.wantsKey && f.depth == f.matched && !f.skipped
		if f.isKey {
			f.key = f.key[:0]
		}
	case ':':
		f.wantsKey = false
		if f.depth == f.matched && f.matched == inMetadata && string(f.key) == fieldsKey {
			f.skipped = true
		}
	case ',':
		f.endValue()
		f.wantsKey = f.matched != inItems
	case '{', '[':
		if f.depth == f.matched && f.opensNext(c) {
			f.matched++
		}
		f.depth++
		f.wantsKey = c == '{'
	case '}', ']':
		f.endValue()
		if f.depth == f.matched {
			f.matched--
		}
		f.depth--
		f.wantsKey = false
		f.key = f.key[:0]
	}
}

// opensNext reports whether a value is the next one of the path.
func (f *fieldsFilter) opensNext(c byte) bool {
	switch f.matched + 1 {
	case inList:
		return c == '{'
	case inItems:
		return c == '[' && string(f.key) == "items"
	case inItem:
		return c == '{'
	case inMetadata:
		return c == '{' && string(f.key) == "metadata"
	default:
		return false
	}
}

// endValue ends the skipped part at the end of a value of the metadata.
func (f *fieldsFilter) endValue() {
	if f.depth == f.matched && f.matched == inMetadata {
		f.skipped = false
	}
}
