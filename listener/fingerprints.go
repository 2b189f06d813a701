package listener

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"math/big"
	"math/bits"
)

// signed is a certificate in its outermost form (RFC 5280, section 4.1).
type signed struct {
	TBS       asn1.RawValue
	Algorithm asn1.RawValue
	Signature asn1.BitString
}

// otherFingerprints returns the fingerprints of the other forms of a certificate that are as valid.
// A list of revocations has one form: the form that the CA issued or the holder presented first.
// The holder may present any other form.
//
// An ECDSA signature (r, s) is as valid as (r, n-s) (SEC 1, section 4.1.4). The order of the
// signer's curve is n. A bit string may have bits of padding, which the parser removes.
func otherFingerprints(leaf, signer *x509.Certificate) []string {
	var form signed
	if _, err := asn1.Unmarshal(leaf.Raw, &form); err != nil {
		return nil // The parser of certificates has taken it, so that this does not happen.
	}

	var others []string
	for _, signature := range [][]byte{leaf.Signature, mirrored(leaf.Signature, signer)} {
		for _, text := range paddings(signature) {
			form.Signature = text
			der, err := asn1.Marshal(form)
			if err == nil && !bytes.Equal(der, leaf.Raw) {
				others = append(others, fingerprintOf(der))
			}
		}
	}
	return others
}

// paddings returns the bit strings that the parser of certificates takes for a signature: that
// without padding, and one for each of its first bits that is 0.
func paddings(signature []byte) (all []asn1.BitString) {
	if len(signature) == 0 {
		return nil
	}

	number := new(big.Int).SetBytes(signature)
	most := min(bits.LeadingZeros8(signature[0]), maxPadding)
	for n := range most + 1 {
		shifted := new(big.Int).Lsh(number, uint(n)).FillBytes(make([]byte, len(signature)))
		all = append(all, asn1.BitString{Bytes: shifted, BitLength: 8*len(signature) - n})
	}
	return all
}

// maxPadding is the number of bits that a bit string may have too many (X.690, section 8.6.2.2).
const maxPadding = 7

// mirrored returns the other valid form of an ECDSA signature, and nil for a signature of another
// kind.
func mirrored(signature []byte, signer *x509.Certificate) []byte {
	key, ok := signer.PublicKey.(*ecdsa.PublicKey)
	if !ok {
		return nil
	}
	var form struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(signature, &form); err != nil {
		return nil
	}

	form.S.Sub(key.Params().N, form.S)
	other, err := asn1.Marshal(form)
	if err != nil {
		return nil
	}
	return other
}

func fingerprintOf(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}
