// What kernels are given: a struct by value, whose fields `kernels/src/params/` repeats. Addresses are
// of device memory. Rows are rows of a step, T in all.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;

// How a matrix lies in memory.
enum MatrixForm {
    FORM_F32 = 0,
    FORM_F16 = 1,
    FORM_BF16 = 2,
    FORM_TILE16 = 3,
    FORM_ROW_MAJOR = 4,
    FORM_SCALED_TILE16 = 5, // scaled integers
    FORM_SCALED_ROW_MAJOR = 6
};

// A matrix in device memory, its parts as a store has them.
struct Matrix {
    const u8* row_scales; // f16; or all elements of a float matrix, or scales of spans
    const u8* tile_tables; // or scales of minima, of scaled integers
    const u8* steps;       // or sub-scales
    const u8* step_high;   // or sub-minima
    const u8* p2; // the codes
    const u8* p3; // or P3 and P4 merged
    const u8* p4;
    const u8* p6;
    const u8* p8;
    const u8* codec; // as stored
    u32 form;
    u32 is_merged;
    u32 rows;
    u32 cols;
    u32 groups;
    // For each level of the model, four bits: the place of the prefix that it means, 15 for none.
    u32 prefixes;
};

// Row of the input, row of the output.
struct Pair {
    u32 x_row;
    u32 out_row;
};

// One matrix at one level for some pairs of rows.
struct Block {
    const Matrix* matrix;
    const float* bias; // of the first row that is wanted; or null
    u32 level;         // of the model, by place
    u32 first_pair;
    u32 pairs;
    u32 first_row; // rows of the matrix that are wanted
    u32 end_row;
    u32 out_col; // column of the output that the first one goes to
};

// Products of blocks; activations in int8 or as they are.
struct ProductParams {
    const Block* blocks; // [blockIdx.y]
    const Pair* pairs;
    const i8* x_values;    // [rows, x_groups, 32]
    const float* x_scales; // [rows, x_groups]
    const float* x;        // [rows, x_stride], for float activations
    float* out;            // [rows, out_cols]
    u32 x_groups;
    u32 x_stride;
    u32 out_cols;
    u32 adds;            // 1: products are added to what is there
    u32 tiles_per_block; // of 16 rows
    u32 padding;
};

// Where the matrices of an expert are, gate, up and down, and how many levels of the model the planes make
// that are there.
struct ExpertEntry {
    const Matrix* matrices[3];
    u32 levels;
    u32 padding;
};

// The experts that a router chose, as blocks of products.
struct ExpertBlocksParams {
    const ExpertEntry* entries; // [experts]
    const u32* least; // [experts, 4]: the least weights, as bits, that levels are used from; null: by row
    const float* biases; // of all gates, then of all ups, then of all downs; or null
    const u32* ids;      // [uses]
    const u32* weights;  // [uses], as bits
    const u32* levels;   // [T]
    Block* inner;        // [uses, 2]: gate and up
    Block* outer;        // [uses]: down
    Pair* inner_pairs;   // [uses]
    Pair* outer_pairs;   // [uses]
    u32* notes;          // [uses]: expert | (level + 1) << 16, without the level where it is the row's
    u32* halt;           // where the call's number goes if planes are missing
    u32 uses;
    u32 per_token;
    u32 experts;
    u32 inner_rows; // of gates and ups
    u32 out_rows;   // of downs
    u32 call;       // from 1 on
    u32 together;   // most uses of a block
    u32 padding;
};

// Rows by their root mean square.
struct RmsNormParams {
    const float* x;      // [rows, cols]
    const float* weight; // [cols]
    float* out;          // [rows, cols]
    i8* values;          // [rows, groups, 32]: the same in int8, where that is wanted
    float* scales;       // [rows, groups]
    u32 rows;
    u32 cols;
    float eps;
    u32 adds; // 1: adds to what is there
};

// Parts of rows in place, each by its own root mean square.
struct NormPartParams {
    float* x;
    const float* weight; // [length]
    u32 count;           // parts in all
    u32 parts;           // of a row
    u32 row_stride;
    u32 part_stride;
    u32 first; // elements before the first part
    u32 length;
    float eps;
    u32 padding;
};

// Activations to int8.
struct QuantizeParams {
    const float* x;
    i8* values;    // [rows, parts, groups, 32]
    float* scales; // [rows, parts, groups]
    u32 rows;
    u32 cols;  // of a part
    u32 parts; // of a row, quantized each on its own
    u32 part_stride;
    u32 stride;     // elements from row to row
    u32 is_rotated; // 1: groups are rotated before
};

// Joins gate and up, which lie in one row, gate in front.
struct GatedParams {
    const float* x; // [rows, 2 * cols]
    float* out;     // [rows, cols], for float activations
    i8* values;     // [rows, groups, 32], for int8
    float* scales;  // [rows, groups]
    u32 rows;
    u32 cols;
    u32 kind; // 0: SiLU; 1: clamped; 2: GELU
    float alpha;
    float limit;
    u32 is_rotated;
};

// Products of gates and ups, a block of each after the other, joined as in `GatedParams`. Two tiles of 16
// rows a block.
struct GatedProductParams {
    ProductParams products; // `out` is not written
    i8* values;             // [rows, groups, 32]
    float* scales;          // [rows, groups]
    u32 kind;
    float alpha;
    float limit;
    u32 is_rotated;
};

// Rows of a table.
struct EmbedParams {
    const Matrix* table;
    const u32* tokens; // [T]
    const u32* levels; // [T]
    float* out;        // [T, cols]
    u32 rows;
    u32 cols;
};

// Norms and rotates heads of queries and keys.
struct RopeParams {
    float* x;
    const float* angles;       // [T, cosines then sines]
    const float* query_weight; // [query_norm]
    const float* key_weight;   // [key_norm]
    u32 rows;
    u32 queries; // heads of a row, queries first
    u32 keys;
    u32 stride; // elements from row to row
    u32 head_dim;
    u32 rope_first; // first element that is rotated, and how many are
    u32 rope_dims;
    u32 is_adjacent; // 1: element 2 i with 2 i + 1; 0: i with i + rope_dims / 2
    u32 query_norm;  // elements that the norms take; 0 for no norm
    u32 key_norm;
    float eps;
    u32 late_norms; // norms that follow the rotation: 1 for that of queries, plus 2 for that of keys
};

// Where a row is, and where the pages of its sequence begin in the list of pages.
struct RowPlace {
    u32 position;
    u32 first_page;
};

// Keys and values into their pages.
struct KvStoreParams {
    const float* x;
    const RowPlace* places; // [T]
    u8* const* pages;       // addresses
    u32 rows;
    u32 heads;
    u32 stride;   // elements from row to row
    u32 first;    // elements before the first key
    u32 head_dim;
    u32 prefix; // elements of a value that are the first of its key; 0 where values are beside keys
    u32 head_words;
    u32 value_first;
    u32 scale_first;
    u32 padding;
};

// Causal attention over windows of positions.
struct AttendParams {
    const float* queries; // [T, stride]
    const RowPlace* places;
    const u8* const* pages;
    const float* sinks; // [heads], or null
    float* out;         // [T, heads * value_dim]
    float* parts;       // [T, heads, splits, value_dim + 2], where splits are merged afterwards
    u32 rows;
    u32 heads;
    u32 sharing; // query heads for each key head
    u32 stride;
    u32 head_dim;
    u32 value_dim;
    u32 window; // positions that a row sees, its own included
    float scale;
    u32 head_words;
    u32 value_first;
    u32 value_position; // words from position to position, and from word to word of values
    u32 value_word;
    u32 prefix_words; // words of a key that have the scale of values
    u32 scale_first;
    u32 splits; // of the longest row
    u32 block_heads; // query heads of one block, at most 8
};

// The experts of every row.
struct RouteParams {
    const float* logits;         // [T, experts]
    const float* logit_bias;     // [experts], or null
    const float* selection_bias; // [experts], or null
    const float* expert_scale;   // [experts], or null
    u32* ids;                    // [T, per_token]
    float* weights;              // [T, per_token]
    u32 rows;
    u32 experts;
    u32 per_token;
    u32 is_sigmoid; // 1: sigmoid of every logit; 0: softmax
    u32 normalizes; // 1: the weights of a row are divided by their sum
    float scale;
    u32 groups; // of experts; 0 for none
    u32 groups_kept;
    u32 two_best; // 1: groups are judged by their two best; 0: by the best
    u32 padding;
};

// Adds what the experts of every row gave, weighted.
struct ExpertsSumParams {
    const float* weights;     // [T, per_token]
    const float* expert_rows; // [T * per_token, cols]
    float* out;               // [T, cols]
    u32 rows;
    u32 cols;
    u32 per_token;
    u32 padding;
};

// Adds rows, each multiplied by a sigmoid.
struct AddGatedParams {
    const float* gate; // [T]
    const float* x;    // [T, cols]
    float* out;        // [T, cols]
    u32 rows;
    u32 cols;
};

// Multiplies by a function of gates.
struct GateParams {
    const float* gate;
    float* out;
    u64 count;
    u32 width;       // elements that a gate multiplies
    u32 is_softplus; // 1: softplus; 0: sigmoid
};

// Multiplies, or keeps within a cap.
struct ScalarParams {
    float* x;
    u64 count;
    float value;
    u32 padding;
};

// Rows by their numbers.
struct GatherRowsParams {
    const float* x;     // [.., cols]
    const u32* indices; // [rows]
    float* out;         // [rows, cols]
    u32 rows;
    u32 cols;
};

// What follows the products of heads.
struct HeadsRestParams {
    const float* x; // [places, inputs + rest]
    float* out;     // [places, outputs + rest]
    u32 places;
    u32 inputs;
    u32 outputs;
    u32 rest;
};

// One run of rows of a sequence.
struct StateRun {
    const float* from; // state that its first row sees, or null for zeros
    float* to;         // state after its last row
    u32 first_row;
    u32 rows;
};

// A gated DeltaNet layer between its projections.
struct DeltaNetParams {
    const float* projected; // [T, stride]: queries, keys, values; gates; beta; alpha
    const StateRun* runs;
    const float* conv; // [taps, channels]
    const float* query_norm;
    const float* key_norm;
    const float* rate;      // [value_heads]
    const float* time_bias; // [value_heads]
    const float* norm;      // [value_dim]
    float* mixed;           // [T, channels]
    float* out;             // [T, value_heads * value_dim]
    u32 rows;
    u32 runs_count;
    u32 stride;
    u32 channels;
    u32 taps;
    u32 key_heads;
    u32 value_heads;
    u32 key_dim;   // of a head
    u32 value_dim; // of a head
    float unit_eps;
    float eps;
    u32 padding;
};

// A Mamba-2 layer between its projections.
struct Mamba2Params {
    const float* projected; // [T, stride]: gates; inputs, B, C; times
    const StateRun* runs;
    const float* conv;      // [taps, channels]
    const float* bias;      // [channels], or null
    const float* rate;      // [heads]
    const float* time_bias; // [heads]
    const float* skip;      // [heads]
    const float* norm;      // [heads * head_dim]
    float* mixed;           // [T, channels]
    float* out;             // [T, heads * head_dim]
    u32 rows;
    u32 runs_count;
    u32 stride;
    u32 channels;
    u32 taps;
    u32 heads;
    u32 groups;
    u32 head_dim;
    u32 state_size;
    float eps;
};

// A gated short convolution between its projections.
struct ShortConvParams {
    const float* projected; // [T, 3 * channels]: input gates, output gates, inputs
    const StateRun* runs;
    const float* conv; // [taps, channels]
    const float* bias; // [channels], or null
    float* out;        // [T, channels]
    u32 runs_count;
    u32 channels;
    u32 taps;
    u32 padding;
};

// The largest of every part of every row.
struct ArgmaxParams {
    const u32* x; // [rows, cols], bits of floats
    u32* orders;  // [rows, parts]
    u32* columns; // [rows, parts]
    u32 rows;
    u32 cols;
    u32 among;     // columns that count, from the first on
    u32 parts;     // of a row
    u32 part_cols; // columns of each but the last
    u32 padding;
};

// The largest of every row, of what its parts have.
struct ArgmaxMergeParams {
    const u32* orders;  // [rows, parts]
    const u32* columns; // [rows, parts]
    u32* out;           // [rows]
    u32 rows;
    u32 parts;
};
