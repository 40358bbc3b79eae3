// stories.mjs - prompts for a small model of children's stories: some share a long beginning, some
// a short one.
//
// SPDX-License-Identifier: MIT
const people = ["Lily", "Tom", "Mia", "Ben", "Sue"];
const places = ["in the park", "at home", "by the sea", "on a hill"];
const things = ["a red ball", "a small dog", "a big box", "a shiny stone", "a blue kite"];

const opening = (who, where) => `Once upon a time, there was a child named ${who}. ${who} liked to play ${where}. `;
const middle = (who) => `One day, ${who} met an old man who was very sad. "Why are you sad?" asked ${who}. "I lost my hat ` +
    `in the wind," said the old man. ${who} wanted to help, so they looked for the hat under the tree, behind the wall and near the water. `;

// 400 prompts of about 25 to 220 tokens.
export function prompts() {
    const list = [];
    for (const who of people) {
        for (const where of places) {
            for (const thing of things) {
                list.push(`${opening(who, where)}There was ${thing}`,
                    `${opening(who, where)}${middle(who)}Then ${who} saw ${thing}`,
                    `${middle(who)}In the end, ${who} and the old man found ${thing} ${where} and`,
                    `${who} had ${thing} ${where}.`);
            }
        }
    }
    return list;
}
